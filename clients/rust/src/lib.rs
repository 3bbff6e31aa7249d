//! Unique numbers from [hapax](https://hapax-id.github.io) servers, issued from memory.
//!
//! ```no_run
//! let client = hapax::Client::new("http://127.0.0.1:8080")?;
//! println!("{}", client.tag("orders").next()?);
//! # Ok::<(), hapax::Error>(())
//! ```
//!
//! A [`Client`] takes stretches of numbers, hands them out one by one, and fetches the next
//! stretch in the background when half of one is used. It is safe for threads and across fork.
//!
//! In asynchronous programs, take what is in hand at once, and wait elsewhere for the rest:
//!
//! ```ignore
//! let id = match tag.try_next()? {
//!     Some(id) => id,
//!     None => tokio::task::spawn_blocking(move || tag.next()).await.unwrap()?,
//! };
//! ```

mod line;
mod process;
mod servers;
#[cfg(test)]
mod tests;

use line::{Ending, Line, MAX_COUNT, MAX_PAUSE, PAUSE};
use serde_json::json;
use servers::Servers;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{error, fmt, thread};

const MAX_TAGS: usize = 10_000;
const MAX_TAG: usize = 128; // bytes
const LONGEST: Duration = Duration::from_secs(3600); // for which a call may wait
const HAND_BACK: Duration = Duration::from_secs(1); // for an answer to a hand-back

/// Says why there is no number.
#[derive(Clone, Debug)]
pub struct Error {
    code: String,
    detail: String,
    status: u16,           // of HTTP; 0: no server said so
    last: bool,            // asking again will not help
    retry_after: Duration, // before the server is to be asked again
}

impl Error {
    /// The server's code, such as `tag_not_found`, or one of `unavailable`, `closed`,
    /// `invalid_argument`, `invalid_tag` and `limit_exceeded`.
    pub fn code(&self) -> &str {
        &self.code
    }

    fn refused(code: &str, detail: String) -> Error {
        Error { code: code.into(), detail, status: 0, last: true, retry_after: Duration::ZERO }
    }

    fn unavailable(detail: String) -> Error {
        Error { last: false, ..Error::refused("unavailable", detail) }
    }

    fn closed() -> Error {
        Error::refused("closed", "the client was closed".into())
    }

    fn crowded(&self) -> bool {
        self.status == 429 || self.status == 507
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.detail)
    }
}

impl error::Error for Error {}

/// A number of a tag that has a code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    pub id: i64,
    pub text: String,
    /// Empty where numbers never restart.
    pub period: String,
}

/// How a client is to be: `Options { servers: vec![…], ..Options::default() }`.
#[derive(Clone)]
pub struct Options {
    /// Such as `http://127.0.0.1:8080`. All of them share one store.
    pub servers: Vec<String>,
    /// With the scopes `issue` and `lease`, or `issue` alone; then nothing is handed back. None.
    pub token: Option<String>,
    /// How to speak TLS, such as with certificates of one's own. As ureq does.
    #[cfg(feature = "tls")]
    pub tls: ureq::tls::TlsConfig,
    /// How many numbers are fetched at once, at least and at most: within these it follows ten
    /// seconds of use. 10 and 100,000.
    pub min_step: usize,
    pub max_step: usize,
    /// Whether the next stretch is fetched in the background. Without, the process may be frozen
    /// between calls. True.
    pub ahead: bool,
    /// How long a call waits for numbers. 5 s.
    pub deadline: Duration,
    /// How long one server may take before the next is asked. 3 s.
    pub call_timeout: Duration,
    #[cfg(test)]
    twin: tests::Twin,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            servers: Vec::new(),
            token: None,
            #[cfg(feature = "tls")]
            tls: Default::default(),
            min_step: 10,
            max_step: 100_000,
            ahead: true,
            deadline: Duration::from_secs(5),
            call_timeout: Duration::from_secs(3),
            #[cfg(test)]
            twin: Default::default(),
        }
    }
}

impl Options {
    /// Says what is wrong with them.
    fn check(&self) -> Result<(), Error> {
        let invalid = |detail: String| Err(Error::refused("invalid_argument", detail));
        let (min, max) = (self.min_step, self.max_step);
        let lengths = [("deadline", self.deadline), ("call_timeout", self.call_timeout)];
        let is_server = |url: &String| {
            let secure = cfg!(feature = "tls").then_some("https://").and_then(|scheme| url.strip_prefix(scheme));
            let host = url.strip_prefix("http://").or(secure).unwrap_or_default();
            !host.is_empty() && !host.starts_with(['/', ':']) && host.bytes().all(|b| b.is_ascii_graphic() && !b"@?#\\".contains(&b))
        };
        if self.servers.is_empty() || !self.servers.iter().all(is_server) {
            return invalid("a server is missing or wrong (not shown): want some such as http://127.0.0.1:8080, or https:// with the feature tls".into());
        }
        if self.token.as_ref().is_some_and(|token| token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic())) {
            return invalid("invalid token (not shown): want one as hapax token new prints it".into());
        }
        if min < 1 || max < min || max > MAX_COUNT {
            return invalid(format!("invalid min_step {min} and max_step {max}: want 1 to {MAX_COUNT}, the first no more than the second"));
        }
        match lengths.iter().find(|(_, d)| d.is_zero() || *d > LONGEST) {
            Some((name, value)) => invalid(format!("invalid {name} {value:?}: want more than 0, up to 3600 s")),
            None => Ok(()),
        }
    }

    /// Whether a test has this client do wrong.
    fn broken(&self, _how: &str) -> bool {
        #[cfg(test)]
        return self.twin.name == _how;
        #[cfg(not(test))]
        false
    }
}

/// What a client has in one process. A forked child begins with another one: the locks of this
/// one may be held there by threads that do not exist.
struct State {
    here: (u64, u32),
    lines: Mutex<HashMap<String, Arc<Line>>>,
    closed: AtomicBool,
    servers: Servers,
}

impl State {
    /// Makes the state of this process, after that of its parent if it is a child.
    fn leak(options: &Options, parent: Option<&State>) -> *mut State {
        let closed = parent.is_some_and(|parent| parent.closed.load(Ordering::SeqCst)).into();
        let servers = Servers::new(options, parent.and_then(|parent| parent.servers.store()));
        Arc::into_raw(Arc::new(State { here: process::here(), lines: Mutex::default(), closed, servers })).cast_mut()
    }
}

struct Inner {
    options: Options,
    state: AtomicPtr<State>, // of an Arc
}

impl Inner {
    /// What this process has: a child begins with nothing.
    fn here(&self) -> Arc<State> {
        let now = self.state.load(Ordering::Acquire);
        // SAFETY: it came from Arc::into_raw, and is given back by drop alone, or, where it is
        // another process's, never.
        let state = unsafe {
            Arc::increment_strong_count(now);
            Arc::from_raw(now)
        };
        if state.here == process::here() || self.options.broken("does not look at the process") {
            return state;
        }
        let new = State::leak(&self.options, Some(&state));
        std::mem::forget(state); // with its locks and connections, which are the parent's
        if self.state.compare_exchange(now, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            drop(unsafe { Arc::from_raw(new) }); // SAFETY: another thread was first, and nobody saw it
        }
        self.here()
    }

    fn close(&self) {
        let (state, until) = (self.here(), Instant::now() + HAND_BACK);
        if state.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        let lines: Vec<Arc<Line>> = lock(&state.lines).values().cloned().collect();
        lines.iter().for_each(|line| line.hand_back(&state.servers, until));
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
        // SAFETY: it came from Arc::into_raw, and nobody can load it any more.
        drop(unsafe { Arc::from_raw(self.state.load(Ordering::Acquire)) });
    }
}

/// Takes numbers from servers that share one store. Its clones are the same client, which is
/// closed with the last of them.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

impl Client {
    /// A client of one server with default options. It connects at its first use.
    pub fn new(server: &str) -> Result<Client, Error> {
        Client::with(Options { servers: vec![server.into()], ..Options::default() })
    }

    pub fn with(options: Options) -> Result<Client, Error> {
        options.check()?;
        let state = AtomicPtr::new(State::leak(&options, None));
        Ok(Client(Arc::new(Inner { options, state })))
    }

    /// The numbers of a tag, which its first use creates unless the servers forbid that. A tag
    /// keeps its client open.
    pub fn tag(&self, name: impl Into<String>) -> Tag {
        Tag { client: self.clone(), name: name.into() }
    }

    /// Hands back what is in hand. Later calls fail with the code `closed`.
    pub fn close(&self) {
        self.0.close();
    }
}

/// A tag's numbers. Make it once or each time: it holds nothing.
#[derive(Clone)]
pub struct Tag {
    client: Client,
    name: String,
}

impl Tag {
    /// One number, which nobody else gets. It waits if none is in hand.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&self) -> Result<i64, Error> {
        Ok(self.take(1)?[0])
    }

    /// Several numbers.
    pub fn take(&self, count: usize) -> Result<Vec<i64>, Error> {
        self.take_within(count, self.client.0.options.deadline)
    }

    /// Several numbers, with a deadline of its own, of up to an hour.
    pub fn take_within(&self, count: usize, deadline: Duration) -> Result<Vec<i64>, Error> {
        check(count)?;
        let (options, until) = (&self.client.0.options, Instant::now() + deadline.min(LONGEST));
        let (mut got, mut ends) = (Vec::new(), None);
        loop {
            let (state, line) = self.line()?;
            let (ending, fetch) = line.pick(options, count, &mut got, &mut ends);
            let need = count - got.len();
            match ending {
                _ if need == 0 => {
                    self.fetch_ahead(state, line, ending);
                    return Ok(got);
                }
                Some(_ending) => self.persist(&state, &line, need, until, false, |n| line.take(&state.servers, n, need, until, &mut got))?,
                None if line.wait(fetch, until) => {}
                None => return Err(lock(&line.hand).said.clone().unwrap_or_else(|| Error::unavailable(format!("no number of {:?} came in time", self.name)))),
            }
        }
    }

    /// One number if that is in hand: it never waits.
    pub fn try_next(&self) -> Result<Option<i64>, Error> {
        let (state, line) = self.line()?;
        let mut got = Vec::new();
        let (ending, _) = line.pick(&self.client.0.options, 1, &mut got, &mut None);
        self.fetch_ahead(state, line, ending.filter(|_| !got.is_empty()));
        Ok(got.pop())
    }

    /// Several numbers with the texts that show them. None is kept for later.
    pub fn codes(&self, count: usize) -> Result<Vec<Code>, Error> {
        check(count)?;
        let (state, line) = self.line()?;
        let until = Instant::now() + self.client.0.options.deadline;
        let path = format!("{}/take", line.path);
        self.persist(&state, &line, count, until, true, |n| {
            state.servers.ask(&path, &json!({ "count": n, "codes": true }), until, |answer, sent| line::codes(answer, n, sent))
        })
    }

    fn line(&self) -> Result<(Arc<State>, Arc<Line>), Error> {
        let state = self.client.0.here(); // before any lock
        if state.closed.load(Ordering::SeqCst) {
            return Err(Error::closed());
        }
        let (mut lines, bytes) = (lock(&state.lines), self.name.len());
        let line = match lines.get(&self.name) {
            Some(line) => line.clone(),
            None if !(1..=MAX_TAG).contains(&bytes) => return Err(Error::refused("invalid_tag", format!("invalid tag of {bytes} bytes: want 1 to {MAX_TAG}"))),
            None if lines.len() >= MAX_TAGS => return Err(Error::refused("limit_exceeded", format!("this client has {MAX_TAGS} tags already; make another one for more"))),
            None => {
                let line = Arc::new(Line::new(path(&self.name), self.client.0.options.min_step));
                lines.entry(self.name.clone()).or_insert(line).clone()
            }
        };
        drop(lines);
        Ok((state, line))
    }

    /// Fetches in the background, if that is to begin.
    fn fetch_ahead(&self, state: Arc<State>, line: Arc<Line>, ending: Option<Ending>) {
        let (Some(ending), options) = (ending, self.client.0.options.clone()) else { return };
        // If there is no thread to be had, the ending ends the fetch.
        let _ = thread::Builder::new().name("hapax".into()).spawn(move || {
            line.fetch_ahead(&state.servers, &options);
            drop(ending);
        });
    }

    /// Asks until a server answers, or the deadline is over.
    fn persist<T>(&self, state: &State, line: &Line, need: usize, until: Instant, exactly: bool, mut ask: impl FnMut(usize) -> Result<T, Error>) -> Result<T, Error> {
        let (mut modest, mut pause) = (exactly, PAUSE);
        let mut said: Option<Error> = None; // the last that a server said
        loop {
            let count = line.count(need, modest);
            let e = match ask(count) {
                Ok(result) => return Ok(result),
                Err(e) => e,
            };
            let full = e.status == 507;
            let again = Instant::now() + pause.max(e.retry_after);
            if e.last || full && count == need || !full && again >= until {
                return Err(said.filter(|_| e.status == 0 && !e.last).unwrap_or(e));
            }
            if e.crowded() {
                modest = true;
                lock(&line.hand).step = self.client.0.options.min_step;
            }
            if e.status > 0 {
                lock(&line.hand).said = Some(e.clone());
                said = Some(e);
            }
            if !full && line.pause(again, &state.closed) {
                return Err(Error::closed());
            }
            pause = MAX_PAUSE.min(2 * pause);
        }
    }
}

fn check(count: usize) -> Result<(), Error> {
    (1..=MAX_COUNT).contains(&count).then_some(()).ok_or_else(|| Error::refused("invalid_argument", format!("invalid count {count}: want 1 to {MAX_COUNT}")))
}

fn path(tag: &str) -> String {
    let dots = tag.bytes().all(|b| b == b'.');
    let encoded = tag.bytes().map(|b| match b {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => char::from(b).to_string(),
        b'.' if !dots => ".".into(),
        _ => format!("%{b:02X}"),
    });
    format!("/v1/tags/{}", encoded.collect::<String>())
}

/// Locks, even if a thread panicked amid: what it guards is whole at every step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
