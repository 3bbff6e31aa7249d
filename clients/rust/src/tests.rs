//! Plays all transcripts, and has broken clients fail those that are about what they do wrong.
//! They need HAPAX, the path of a built hapax.

use crate::servers::Servers;
use crate::{lock, Client, Error, Options};
use serde_json::{json, Value};
use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Played = Result<(), String>;

/// hapax testserver, which ends with this process.
struct TestServer {
    process: Child,
    servers: Vec<String>,
    control: String,
}

impl TestServer {
    fn new(script: &str) -> TestServer {
        let hapax = std::env::var("HAPAX").expect("HAPAX, the path of a built hapax");
        let args = ["testserver", "--http", "127.0.0.1:0", "--until-eof", "--script", script];
        let mut process = Command::new(hapax).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (mut servers, mut control) = (Vec::new(), String::new());
        for line in BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap) {
            match line.split_once(' ') {
                Some(("server", url)) => servers.push(url.into()),
                Some((_, url)) => control = url.into(),
                None => break,
            }
        }
        assert!(!servers.is_empty(), "the test server ended");
        TestServer { process, servers, control }
    }

    fn plain(name: &str, script: &str) -> TestServer {
        let file = std::env::temp_dir().join(format!("hapax-{}-{name}.json", std::process::id()));
        std::fs::write(&file, script).unwrap();
        let server = TestServer::new(file.to_str().unwrap());
        std::fs::remove_file(file).unwrap();
        server
    }

    fn options(&self) -> Options {
        let minute = Duration::from_secs(60);
        Options { servers: self.servers.clone(), deadline: minute, call_timeout: minute, ..Options::default() }
    }

    fn ask(&self, path: &str, body: Option<&Value>) -> Result<String, String> {
        let agent = ureq::Agent::new_with_config(ureq::Agent::config_builder().http_status_as_error(false).build());
        let url = format!("{}{path}", self.control);
        let answer = match body {
            Some(body) => agent.post(url).send(body.to_string()),
            None => agent.get(url).call(),
        };
        let mut answer = answer.map_err(|e| e.to_string())?;
        let text = answer.body_mut().read_to_string().unwrap();
        if answer.status() == 200 { Ok(text) } else { Err(text) }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        self.process.wait().unwrap();
    }
}

type Answer = Result<(Value, Option<String>), Error>;

/// How a client is broken, and what it keeps of answers for that.
#[derive(Clone, Default)]
pub(crate) struct Twin {
    pub(crate) name: &'static str,
    late: Arc<Mutex<Option<Answer>>>,
    above: Arc<Mutex<i64>>,
}

/// Sends a request as the client does, or as a broken one.
pub(crate) fn send(servers: &Servers, server: &str, path: &str, body: &Value, timeout: Duration) -> Answer {
    let twin = &servers.options.twin;
    match twin.name {
        "uses a late answer" => {
            let mut late = lock(&twin.late);
            if let Some(answer) = late.take() {
                return answer;
            }
            let began = std::time::Instant::now();
            let answer = servers.send(server, path, body, Duration::from_secs(60));
            if began.elapsed() < timeout {
                return answer;
            }
            *late = Some(answer);
            Err(Error::unavailable("late".into()))
        }
        "counts a lost answer as taken" if body["count"].is_i64() => {
            let mut above = lock(&twin.above);
            let first = *above + 1;
            *above += body["count"].as_i64().unwrap();
            let made = json!({ "count": body["count"], "first": first.to_string(), "delta": "1", "valid_for": 60 });
            servers.send(server, path, body, timeout).or(Ok((made, servers.store().or(Some("made".into())))))
        }
        _ => servers.send(server, path, body, timeout),
    }
}

fn transcripts() -> Vec<String> {
    let all = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../transcripts")).unwrap();
    let mut files: Vec<String> = all.map(|f| f.unwrap().path().to_str().unwrap().into()).filter(|f: &String| f.ends_with(".json")).collect();
    files.sort();
    files
}

fn play(file: &str, twin: &'static str) -> Played {
    let script: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let server = TestServer::new(file);
    let options = &script["client"];
    let number = |name: &str, otherwise| options[name].as_u64().unwrap_or(otherwise);
    let client = Client::with(Options {
        twin: Twin { name: twin, ..Twin::default() },
        token: options["token"].as_str().map(String::from),
        min_step: number("min_step", 10) as usize,
        max_step: number("max_step", 100_000) as usize,
        ahead: options["ahead"].as_bool().unwrap_or(true),
        deadline: Duration::from_millis(number("deadline_ms", 5000)),
        call_timeout: Duration::from_millis(number("call_timeout_ms", 3000)),
        ..server.options()
    }).unwrap();
    let mut seen = HashSet::new();
    for step in script["steps"].as_array().unwrap() {
        play_step(&server, &client, step, &mut seen).map_err(|why| format!("{step}: {why}"))?;
    }
    server.ask("/check", None).map(|_| ())
}

fn play_step(server: &TestServer, client: &Client, step: &Value, seen: &mut HashSet<(String, i64)>) -> Played {
    let number = |name: &str| step[name].as_u64().unwrap_or(1);
    let tag = client.tag(step["tag"].as_str().unwrap_or_default());
    let many = || (0..number("times")).map(|_| tag.next()).collect::<Result<Vec<i64>, Error>>();
    let mut texts = Vec::new();
    let got = match step["do"].as_str().unwrap() {
        "sleep" => {
            std::thread::sleep(Duration::from_millis(number("ms")));
            return Ok(());
        }
        "requests" => return server.ask(&format!("/requests?done={}", number("done")), None).map(|_| ()),
        "server" => return server.ask("/do", Some(&step["fault"])).map(|_| ()),
        "close" => {
            client.close();
            return Ok(());
        }
        "codes" => tag.codes(number("count") as usize).map(|codes| {
            texts.extend(codes.into_iter().map(|code| code.text));
            Vec::new()
        }),
        "take" => tag.take(number("count") as usize),
        "next" => many(),
        "fork" => {
            let child = forked(|| many().unwrap());
            many().map(|mut here| {
                here.extend(child.join());
                here
            })
        }
        other => panic!("what is {other}?"),
    };
    let got = match (got, step["error"].as_str()) {
        (Ok(got), None) => got,
        (Err(e), Some(code)) if e.code() == code => return Ok(()),
        (got, _) => return Err(format!("got {got:?}")),
    };
    for n in got {
        texts.push(n.to_string());
        if !seen.insert((step["tag"].as_str().unwrap().into(), n)) {
            return Err(format!("{n} came twice"));
        }
    }
    let want = step["want"].as_array().map(|all| all.iter().map(|text| text.as_str().unwrap().to_string()).collect::<Vec<_>>());
    if want.is_some_and(|want| want != texts) {
        return Err(format!("got {texts:?}"));
    }
    Ok(())
}

extern "C" {
    fn fork() -> i32;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(status: i32) -> !;
}

struct Forked(i32, std::io::PipeReader);

impl Forked {
    fn join(mut self) -> Vec<i64> {
        let (mut text, mut status) = (String::new(), 0);
        self.1.read_to_string(&mut text).unwrap();
        // SAFETY: it is a child of this process, which nobody else waits for.
        assert_eq!(unsafe { waitpid(self.0, &mut status, 0) }, self.0);
        assert_eq!(status, 0, "the child failed");
        text.split_whitespace().map(|n| n.parse().unwrap()).collect()
    }
}

/// Takes numbers in a child.
fn forked(take: impl FnOnce() -> Vec<i64>) -> Forked {
    let (read, mut write) = std::io::pipe().unwrap();
    // SAFETY: the child allocates, as glibc allows, and ends without anything of the parent's.
    match unsafe { fork() } {
        0 => {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let text: Vec<String> = take().iter().map(i64::to_string).collect();
                write.write_all(text.join(" ").as_bytes()).unwrap();
            }));
            unsafe { _exit(done.is_err() as i32) }
        }
        pid => Forked(pid, read),
    }
}

fn caught(name: &str, twin: &'static str) {
    let file = transcripts().into_iter().find(|f| f.contains(&format!("/{name}-"))).unwrap();
    assert!(play(&file, twin).is_err(), "the broken client passes {name}");
}

#[test]
fn all_transcripts() {
    let files = transcripts();
    assert!(files.len() > 30);
    let files = Mutex::new(files.into_iter());
    let work = || -> Vec<String> {
        let next = || lock(&files).next();
        std::iter::from_fn(next).filter_map(|file| play(&file, "").err().map(|why| format!("{file}: {why}"))).collect()
    };
    let failed = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..8).map(|_| scope.spawn(work)).collect(); // most of them wait
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn twin_that_does_not_look_at_the_process() {
    caught("32", "does not look at the process");
}

#[test]
fn twin_that_uses_a_late_answer() {
    caught("10", "uses a late answer");
}

#[test]
fn twin_that_goes_past_the_end() {
    caught("20", "goes past the end");
}

#[test]
fn twin_that_counts_a_lost_answer_as_taken() {
    caught("08", "counts a lost answer as taken");
    caught("09", "counts a lost answer as taken");
}

#[test]
fn threads() {
    let server = TestServer::plain("threads", "{}");
    let client = Client::with(server.options()).unwrap();
    let workers: Vec<_> = (0..8).map(|_| client.tag("orders")).map(|tag| std::thread::spawn(move || (0..5000).map(|_| tag.next().unwrap()).collect::<Vec<i64>>())).collect();
    let parts: Vec<Vec<i64>> = workers.into_iter().map(|w| w.join().unwrap()).collect();
    assert!(parts.iter().all(|part| part.is_sorted()));
    assert_eq!(parts.concat().into_iter().collect::<HashSet<_>>().len(), 40_000);
    let asked = server.ask("/requests", None).unwrap().matches("/take").count();
    assert!(asked < 100, "the step does not follow the use: {asked} requests");
}

#[test]
fn is_closed_with_its_last_clone() {
    let server = TestServer::plain("closed", "{}");
    let client = Client::with(server.options()).unwrap();
    let tag = client.tag("orders");
    assert_eq!(tag.try_next().unwrap(), None);
    assert_eq!(tag.take_within(1, Duration::MAX).unwrap(), [1]);
    assert_eq!(tag.try_next().unwrap(), Some(2));
    drop(client);
    assert_eq!(tag.next().unwrap(), 3);
    drop(tag);
    assert!(server.ask("/requests", None).unwrap().contains("/handback"));
}

/// The fetch is another call's, and a call that waits for it fails with the code that a server gave to that.
#[test]
fn last_code_of_anothers_fetch() {
    let slow = r#"{"servers":[{"faults":[{"at":1,"do":"fail","code":"refill_pending"},{"at":2,"do":"delay","ms":600000}]}]}"#;
    let server = TestServer::plain("last-code", slow);
    let client = Client::with(Options { ahead: false, ..server.options() }).unwrap();
    let tag = client.tag("orders");
    let other = tag.clone();
    let fetching = std::thread::spawn(move || other.next());
    while server.ask("/requests", None).unwrap().matches("/take").count() < 2 {
        std::thread::yield_now();
    }
    assert_eq!(tag.take_within(1, Duration::from_millis(50)).unwrap_err().code(), "refill_pending");
    client.close();
    drop(server); // and the call has no answer
    assert_eq!(fetching.join().unwrap().unwrap_err().code(), "closed");
}

#[test]
fn fork_while_locks_are_held() {
    let server = TestServer::plain("fork", "{}");
    let client = Client::with(Options { ahead: false, ..server.options() }).unwrap();
    let tag = client.tag("orders");
    assert_eq!(tag.next().unwrap(), 1);
    let (state, line) = tag.line().unwrap();
    let held = (lock(&state.lines), lock(&line.hand)); // as by another thread
    let child = forked(|| {
        let got = vec![tag.next().unwrap()];
        client.close();
        got
    });
    let there = child.join();
    drop(held);
    assert!(there[0] > 10, "the child has a number of its parent's stretch: {there:?}");
    assert_eq!(tag.next().unwrap(), 2);
    let (first, twice) = (line.clone(), tag.clone());
    assert!(Arc::ptr_eq(&first, &twice.line().unwrap().1), "the parent began anew");
}

#[test]
fn wrong_settings() {
    let with = |servers: &[&str]| Options { servers: servers.iter().map(|s| s.to_string()).collect(), ..Options::default() };
    let good = || with(&["http://x"]);
    let token = |token: &str| Options { token: Some(token.into()), ..good() };
    let step = |min_step, max_step| Options { min_step, max_step, ..good() };
    let all = [
        with(&[]), with(&["ftp://x"]), with(&["http://u:secret@x"]), with(&["http://"]), with(&["http://x", "x"]), token("secret b"), token(""),
        step(0, 1), step(2, 1), step(1, 1_000_001), Options { deadline: Duration::ZERO, ..good() }, Options { call_timeout: Duration::from_secs(3601), ..good() },
    ];
    for options in all {
        let e = Client::with(options).err().expect("it is taken");
        assert!(e.code() == "invalid_argument" && !e.to_string().contains("secret"), "{e}");
    }
    let client = Client::with(good()).unwrap();
    assert_eq!(client.tag("").next().unwrap_err().code(), "invalid_tag");
    assert_eq!(client.tag("x").take(0).unwrap_err().code(), "invalid_argument");
}

#[test]
fn servers_that_hang_before_one_that_answers() {
    let server = TestServer::plain("hang", "{}");
    let hangs = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", hangs.local_addr().unwrap());
    let (deadline, call_timeout) = (Duration::from_millis(500), Duration::from_millis(300));
    let servers = vec![url.clone(), url, server.servers[0].clone()];
    let client = Client::with(Options { servers, deadline, call_timeout, ahead: false, ..server.options() }).unwrap();
    let tag = client.tag("orders");
    assert_eq!(tag.next().unwrap_err().code(), "unavailable");
    let preferred = tag.line().unwrap().0.servers.preferred.load(std::sync::atomic::Ordering::SeqCst);
    assert_ne!(preferred, 0, "its time never reaches the last");
    assert_eq!(tag.take_within(1, Duration::from_secs(60)).unwrap(), [1]);
}

#[test]
fn answers_without_numbers() {
    let first = r#""count":1,"first":"1","delta":"1","valid_for":60"#;
    let mut bodies: Vec<String> = [
        "", "{", "{}", r#"{"count":1}"#, r#"{"count":1.0,"first":"1","delta":"1"}"#, r#"{"count":0,"ids":[]}"#, r#"{"count":11,"first":"1","delta":"1"}"#,
        r#"{"count":1,"first":1,"delta":"1"}"#, r#"{"count":1,"first":"-1","delta":"1"}"#, r#"{"count":1,"first":"+1","delta":"1"}"#, r#"{"count":1,"first":"9223372036854775808","delta":"1"}"#,
        r#"{"count":2,"first":"9223372036854775807","delta":"1"}"#, r#"{"count":2,"first":"1","delta":"0"}"#, r#"{"count":2,"first":"5","delta":"-1"}"#, r#"{"count":2,"first":"1"}"#,
        r#"{"count":2,"ids":["1"]}"#, r#"{"count":1,"ids":[1]}"#, r#"{"count":1,"ids":{"0":"1"}}"#,
    ].map(String::from).into();
    bodies.extend([r#"{"a":"#.to_string() + &"[".repeat(100_000), format!(r#"{{"count":1,"first":"{}","delta":"1"}}"#, "9".repeat(100_000))]);
    bodies.extend(["-1", "[]", r#""60""#, "{}"].map(|valid| format!("{{{}}}", first.replace("60", valid))));
    let faults: Vec<Value> = bodies.iter().enumerate().map(|(i, body)| json!({ "at": i + 1, "do": "answer", "status": 200, "body": body })).collect();
    let server = TestServer::plain("hostile", &json!({ "servers": [{ "faults": faults }] }).to_string());
    let client = Client::with(Options { ahead: false, ..server.options() }).unwrap();
    for body in bodies {
        let e = client.tag("orders").take_within(1, Duration::from_millis(40)).expect_err(&body);
        assert!(e.to_string().len() < 300, "{e}");
    }
    let numbers = client.tag("orders").next().unwrap();
    assert!((1..=91).contains(&numbers), "{numbers}");
}

#[test]
fn is_for_threads() {
    fn check<T: Send + Sync + Clone + 'static>() {}
    check::<Client>();
    check::<crate::Tag>();
}
