//! The gateway and nginx as a plain reverse proxy, to the same upstream, alternating in one run.
//!
//! nginx: two workers, upstream connections kept, no log. The gateway: two threads, no log, and the fence. The load is
//! `wrk`: small PUTs over many names. A holder sends many requests with one token, so after the first the mark is cached.
//! A third figure is the cost when each request brings a higher token, so that each mark must go to disk.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fencepost_gateway::{Config, Gateway};
use fencepost_testkit::ports::on_free_port;
use fencepost_testkit::wait::{SOON, until};
use fencepost_testkit::{Nginx, Process};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, upstream, directory] = arguments.as_slice()
        && role == "gateway"
    {
        return run_gateway(upstream, Path::new(directory));
    }
    // `cargo test` runs benchmarks too, to see that they work. Then everything is small.
    let full = arguments.iter().any(|argument| argument == "--bench");
    let (slices, seconds, connections) = if full { (9, 3, 64) } else { (1, 1, 4) };

    let upstream = on_free_port(|port| Nginx::start(port, "", "location / { return 204; }"))?;
    let to = format!("http://{}", upstream.address());
    let http = format!(
        "upstream u {{ server {}; keepalive 128; keepalive_requests 1000000000; }}",
        upstream.address()
    );
    let location = "location / { proxy_pass http://u; proxy_http_version 1.1; proxy_set_header Connection \"\"; }";
    let first = on_free_port(|port| Nginx::start(port, &http, location))?;
    let second = Nginx::start(first.port(), &http, location)?;
    let directory = tempfile::tempdir()?;
    let (process, ours) = start(&to, directory.path())?;
    let nginx = format!("http://{}", first.address());

    for connections in [connections, 16] {
        println!(
            "PUT of 64 bytes over 10,000 names, {connections} connections, {slices} slices of {seconds} s each"
        );
        let (mine, its) = (vec![process.pid()], vec![first.pid(), second.pid()]);
        let contestants = [
            ("fencepost", &ours, KNOWN, &mine),
            ("nginx", &nginx, KNOWN, &its),
            ("upstream alone", &to, KNOWN, &vec![upstream.pid()]),
        ];
        let mut found = contestants.map(|_| Vec::new());
        // The first requests of a name raise its mark, and all of nginx's caches are cold.
        for (_, url, script, pids) in contestants {
            load(url, script, connections, seconds, pids, directory.path())?;
        }
        for slice in 0..slices {
            for turn in 0..contestants.len() {
                let which = (slice + turn) % contestants.len();
                let (_, url, script, pids) = contestants[which];
                let slice = load(url, script, connections, seconds, pids, directory.path())?;
                found[which].push(slice);
            }
        }
        for (which, (what, ..)) in contestants.iter().enumerate() {
            let both = found[0].iter().zip(&found[which]);
            let ratio = median(both.map(|(ours, its)| ours.rate / its.rate));
            println!("  {what:<24} {}  ours is {ratio:.2}x", figures(&found[which]));
        }
        // Separately: the writes that the disk still has to do would slow down the next contestant.
        let rising: Outcome<Vec<Slice>> = (0..slices.div_ceil(3))
            .map(|_| load(&ours, RISING, connections, seconds, &mine, directory.path()))
            .collect();
        println!("  {:<24} {}", "fencepost, tokens rise", figures(&rising?));
    }
    Ok(())
}

fn figures(slices: &[Slice]) -> String {
    let rate = median(slices.iter().map(|slice| slice.rate));
    let p99 = median(slices.iter().map(|slice| slice.p99));
    let cpu = median(slices.iter().map(|slice| slice.cpu));
    format!("{rate:>7.0} requests/s  p99 {p99:>7.2} ms  {cpu:>5.1} µs of CPU each")
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn run_gateway(upstream: &str, directory: &Path) -> Outcome<()> {
    let mut config = Config::new("127.0.0.1:0".parse()?, upstream.parse()?, directory.to_owned());
    config.patterns = vec!["/{name*}".parse()?];
    config.threads = 2;
    let gateway = Gateway::start(&config)?;
    println!("listening on {}", gateway.address());
    loop {
        std::thread::park();
    }
}

fn start(upstream: &str, directory: &Path) -> Outcome<(Process, String)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("gateway").arg(upstream).arg(directory.join("marks"));
    let process = Process::spawn(&command, &directory.join("gateway.log"))?;
    let mut url = None;
    until(SOON, "the gateway listens", || {
        let log = process.log();
        let address = log.lines().find_map(|line| line.strip_prefix("listening on "));
        url = address.map(|address| format!("http://{address}"));
        Ok(url.is_some())
    })?;
    Ok((process, url.ok_or("no address")?))
}

/// The same token for all, as if each name had one holder.
const KNOWN: &str = r#"
local body = string.rep("x", 64)
local headers = { ["Fencing-Token"] = "7" }
function init()
  math.randomseed(os.time())
  number = math.random(10000)
end
function request()
  number = number % 10000 + 1
  return wrk.format("PUT", "/known/" .. number, headers, body)
end
"#;

/// Each request has a higher token than all before it in its thread. Each thread has its own names.
const RISING: &str = r#"
local body, number, counter = string.rep("x", 64), 0, os.time() * 1000000
function setup(thread)
  thread:set("id", number)
  number = number + 1
end
function request()
  counter = counter + 1
  local headers = { ["Fencing-Token"] = string.format("%.0f", counter) }
  return wrk.format("PUT", "/rising/" .. id .. "/" .. (counter % 5000), headers, body)
end
"#;

struct Slice {
    rate: f64,
    /// Milliseconds.
    p99: f64,
    /// Microseconds of CPU per request. Unlike the rate it is the same on a busy machine.
    cpu: f64,
}

/// CPU time of all threads of these processes, in microseconds.
fn cpu_micros(pids: &[u32]) -> Outcome<f64> {
    let mut micros = 0.0;
    for pid in pids {
        for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let spent = std::fs::read_to_string(thread?.path().join("schedstat"))?;
            micros += spent.split(' ').next().ok_or("no time")?.parse::<f64>()? / 1000.0;
        }
    }
    Ok(micros)
}

fn load(
    url: &str,
    script: &str,
    connections: u32,
    seconds: u32,
    pids: &[u32],
    directory: &Path,
) -> Outcome<Slice> {
    let refusals = "\nfunction done(summary) print(\"refused \" .. summary.errors.status) end\n";
    let file = directory.join("load.lua");
    std::fs::write(&file, format!("{script}{refusals}"))?;
    let before = cpu_micros(pids)?;
    let output = Command::new("wrk")
        .args(["-t2", "--latency", &format!("-c{connections}"), &format!("-d{seconds}s"), "-s"])
        .arg(&file)
        .arg(url)
        .output()
        .map_err(|error| format!("install wrk (scripts/test does): {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let after = |words: &str| {
        text.lines().find_map(|line| Some(line.trim().strip_prefix(words)?.trim().to_owned()))
    };
    let rate: f64 = after("Requests/sec:").ok_or("no rate")?.parse()?;
    if after("refused").as_deref() != Some("0") {
        return Err(format!("requests were refused: {text}").into());
    }
    let count = text.lines().find_map(|line| line.trim().split_once(" requests in "));
    let count: f64 = count.ok_or("no count")?.0.parse()?;
    let cpu = (cpu_micros(pids)? - before) / count;
    Ok(Slice { rate, p99: milliseconds(&after("99%").ok_or("no latency")?)?, cpu })
}

fn milliseconds(text: &str) -> Outcome<f64> {
    let digits = text.find(|c: char| c.is_ascii_alphabetic()).ok_or("no unit")?;
    let number: f64 = text[..digits].parse()?;
    Ok(match &text[digits..] {
        "us" => number / 1000.0,
        "ms" => number,
        _ => number * Duration::from_secs(1).as_secs_f64() * 1000.0,
    })
}
