// Uses the lock of npm redlock as a program of its users would.
//
// usage: npm_redlock.js PORT,PORT,... NAME TTL_MS
// Prints `ready`, then executes each line on stdin and answers with one line: `acquire` waits and prints
// `granted`; `try` does not wait and may print `refused`; `extend` and `release` print `extended` and
// `released`, or the error; `count DIRECTORY` counts there until there is a file `enough`, and prints how often
// it did. Ends when stdin does.

"use strict";

const fs = require("fs");
const readline = require("readline");
const redis = require("redis");
const Redlock = require("redlock");
const sleep = require("util").promisify(setTimeout);

const [ports, name, ttl] = process.argv.slice(2);
const clients = ports.split(",").map((port) => redis.createClient({ port: Number(port) }));
const patient = new Redlock(clients, { retryCount: 6000, retryDelay: 5, retryJitter: 3 });
const hasty = new Redlock(clients, { retryCount: 0 });
let lock;

const verbs = {
  async acquire() {
    lock = await patient.acquire(name, Number(ttl));
    return "granted";
  },
  async try() {
    lock = await hasty.acquire(name, Number(ttl)).catch(() => null);
    return lock ? "granted" : "refused";
  },
  async extend() {
    lock = await lock.extend(Number(ttl));
    return "extended";
  },
  async release() {
    await lock.unlock();
    return "released";
  },
  // Reads the counter, pauses, writes it back; then logs who did, and rests.
  async count(directory) {
    let rounds = 0;
    for (; !fs.existsSync(`${directory}/enough`); rounds++) {
      await verbs.acquire();
      const value = Number(fs.readFileSync(`${directory}/counter`, "utf8"));
      await sleep(2);
      fs.writeFileSync(`${directory}/counter`, `${value + 1}\n`);
      fs.appendFileSync(`${directory}/grants`, "npm redlock\n");
      await verbs.release();
      await sleep(20);
    }
    return rounds;
  },
};

async function main() {
  console.log("ready");
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [verb, ...words] = line.split(" ");
    console.log(await verbs[verb](...words).catch((error) => error.name));
  }
  process.exit(0);
}

main();
