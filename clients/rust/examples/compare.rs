//! What bench/clients/compare measures, in Rust: compare HTTP-URL REDIS-PORT SECONDS.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const KEPT: usize = 1 << 20; // times of the latest calls

fn measure(seconds: f64, name: &str, numbers: usize, mut call: impl FnMut()) {
    let warm = Instant::now();
    while warm.elapsed().as_secs_f64() < seconds / 4.0 {
        call();
    }
    let (mut times, mut calls) = (vec![Duration::ZERO; KEPT], 0);
    let began = Instant::now();
    let mut last = began;
    while (last - began).as_secs_f64() < seconds {
        call();
        let now = Instant::now();
        times[calls % KEPT] = now - last;
        (last, calls) = (now, calls + 1);
    }
    times.truncate(calls);
    times.sort();
    println!("{name} {} {}", (calls * numbers) as f64 / (last - began).as_secs_f64(), times[times.len() * 99 / 100].as_secs_f64() * 1e6);
}

fn connected(port: &str) -> TcpStream {
    let stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn over_http(http: &mut TcpStream, request: &[u8], buffer: &mut [u8]) {
    http.write_all(request).unwrap();
    let (mut size, mut whole) = (0, usize::MAX);
    while size < whole {
        size += http.read(&mut buffer[size..]).unwrap();
        let text = std::str::from_utf8(&buffer[..size]).unwrap();
        if let Some((head, _)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:").map(|n| n.trim().parse::<usize>().unwrap()));
            whole = head.len() + 4 + length.unwrap();
        }
    }
}

fn over_redis(redis: &mut TcpStream, request: &[u8], mut replies: usize, buffer: &mut [u8]) {
    redis.write_all(request).unwrap();
    while replies > 0 {
        let size = redis.read(buffer).unwrap();
        replies -= buffer[..size].iter().filter(|b| **b == b'\n').count();
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let (url, seconds) = (&args[1], args[3].parse().unwrap());
    let client = hapax::Client::new(url).unwrap();
    let tag = client.tag("bench");
    measure(seconds, "next", 1, || { std::hint::black_box(tag.next().unwrap()); });
    measure(seconds, "take", 100, || { std::hint::black_box(tag.take(100).unwrap()); });
    client.close();
    let (mut http, mut redis, mut buffer) = (connected(url.rsplit(':').next().unwrap()), connected(&args[2]), vec![0; 1 << 16]);
    let request = b"POST /v1/tags/bench/ids HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n";
    let incr = b"*2\r\n$4\r\nINCR\r\n$5\r\nbench\r\n";
    measure(seconds, "http", 1, || over_http(&mut http, request, &mut buffer));
    measure(seconds, "redis", 1, || over_redis(&mut redis, incr, 1, &mut buffer));
    measure(seconds, "pipeline", 100, || over_redis(&mut redis, &incr.repeat(100), 100, &mut buffer));
}
