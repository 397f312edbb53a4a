// Uses the lock of npm redlock as a program of its users would.
//
// usage: npm_redlock.js PORT,PORT,... NAME TTL_MS
// Says `ready`, then does what each line on stdin asks and answers with one line: `acquire` waits and says
// `granted`; `extend` and `release` say `extended` and `released`, or the error; `count DIRECTORY ROUNDS` says
// `counted`. Ends when stdin does.

"use strict";

const fs = require("fs");
const readline = require("readline");
const redis = require("redis");
const Redlock = require("redlock");

const [ports, name, ttl] = process.argv.slice(2);
const clients = ports.split(",").map((port) => redis.createClient({ port: Number(port) }));
const limit = { retryCount: 6000, retryDelay: 5, retryJitter: 3 };
const redlock = new Redlock(clients, limit);
let lock;

const verbs = {
  async acquire() {
    lock = await redlock.acquire(name, Number(ttl));
    return "granted";
  },
  async extend() {
    lock = await lock.extend(Number(ttl));
    return "extended";
  },
  async release() {
    await lock.unlock();
    return "released";
  },
  // Reads the counter, dawdles, writes it back; then says who did.
  async count(directory, rounds) {
    for (let round = 0; round < Number(rounds); round++) {
      await verbs.acquire();
      const value = Number(fs.readFileSync(`${directory}/counter`, "utf8"));
      await new Promise((done) => setTimeout(done, 2));
      fs.writeFileSync(`${directory}/counter`, `${value + 1}\n`);
      fs.appendFileSync(`${directory}/grants`, "npm redlock\n");
      await verbs.release();
    }
    return "counted";
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
