//! Asks servers: one until it fails, and then the next.

use crate::{lock, Error, Options};
use serde_json::Value;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};

const STORE: &str = "Hapax-Store";
const MAX_ANSWER: u64 = 64 << 20; // bytes
const REST: Duration = Duration::from_secs(1); // for which a server that failed is asked last
const LONGEST: Duration = Duration::from_secs(3600); // of Retry-After
const REFUSED: [u16; 10] = [400, 401, 403, 404, 405, 409, 410, 413, 415, 501];

/// A time by both clocks, such as when a request was sent.
#[derive(Clone, Copy)]
pub(crate) struct Sent(pub(crate) Instant, pub(crate) SystemTime);

impl Sent {
    /// Whether it is past, by one of the clocks: the monotonic one may stand still while a machine sleeps.
    pub(crate) fn over(&self) -> bool {
        Instant::now() >= self.0 || SystemTime::now() >= self.1
    }
}

/// The servers of one client, in one process.
pub(crate) struct Servers {
    agent: ureq::Agent,
    pub(crate) options: Options,
    pub(crate) preferred: AtomicUsize,
    rests: Vec<Mutex<Instant>>, // until when each is asked last
    store: OnceLock<String>,
}

impl Servers {
    pub(crate) fn new(options: &Options, store: Option<String>) -> Servers {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0) // the token is for these servers alone
            .max_redirects_will_error(false)
            .user_agent(concat!("hapax-rust/", env!("CARGO_PKG_VERSION")));
        #[cfg(feature = "tls")]
        let config = config.tls_config(options.tls.clone());
        Servers {
            agent: config.build().new_agent(),
            preferred: AtomicUsize::new(0),
            rests: options.servers.iter().map(|_| Mutex::new(Instant::now())).collect(),
            store: store.map(OnceLock::from).unwrap_or_default(),
            options: options.clone(),
        }
    }

    pub(crate) fn store(&self) -> Option<String> {
        self.store.get().cloned()
    }

    /// Asks each server once, until one gives an answer that can be read.
    pub(crate) fn ask<T>(&self, path: &str, body: &Value, until: Instant, read: impl Fn(&Value, Sent) -> Result<T, String>) -> Result<T, Error> {
        let (count, first, now) = (self.rests.len(), self.preferred.load(Ordering::Relaxed), Instant::now());
        let mut order: Vec<usize> = (0..count).map(|i| (first + i) % count).collect();
        order.sort_by_key(|i| *lock(&self.rests[*i]) > now); // is stable
        let mut last: Option<Error> = None;
        let mut soonest = LONGEST;
        for i in order {
            let sent = Sent(Instant::now(), SystemTime::now());
            let left = until.saturating_duration_since(sent.0);
            if left.is_zero() {
                break;
            }
            let server = &self.options.servers[i];
            #[cfg(not(test))]
            let answer = self.send(server, path, body, left.min(self.options.call_timeout));
            #[cfg(test)]
            let answer = crate::tests::send(self, server, path, body, left.min(self.options.call_timeout));
            let result = answer.and_then(|(answer, named)| {
                let result = read(&answer, sent).map_err(|why| Error::unavailable(format!("{server} answered with something else than numbers: {why}")))?;
                // The first answer with numbers says which store it is.
                let known = named.filter(|named| self.store.get_or_init(|| named.clone()) == named);
                known.map(|_| result).ok_or_else(|| Error { code: "store_replaced".into(), status: 503, ..Error::unavailable(format!("{server} has another store than the servers before; its numbers are not used")) })
            });
            let failed = match result {
                Ok(result) => {
                    self.preferred.store(i, Ordering::Relaxed);
                    return Ok(result);
                }
                Err(e) if e.last || e.crowded() => return Err(e),
                Err(e) => e,
            };
            log::warn!("hapax: {failed}");
            self.preferred.store((i + 1) % count, Ordering::Relaxed); // else the time may never reach those after some that hang
            *lock(&self.rests[i]) = Instant::now() + REST.max(failed.retry_after);
            soonest = soonest.min(failed.retry_after);
            if last.is_none() || failed.status > 0 {
                last = Some(failed);
            }
        }
        let last = last.unwrap_or_else(|| Error::unavailable("no server answered in time".into()));
        Err(Error { retry_after: if last.status == 0 && soonest == LONGEST { Duration::ZERO } else { soonest }, ..last })
    }

    /// Sends one request, and returns the fields of its answer and what that calls its store.
    pub(crate) fn send(&self, server: &str, path: &str, body: &Value, timeout: Duration) -> Result<(Value, Option<String>), Error> {
        let mut request = self.agent.post(format!("{}{path}", server.trim_end_matches('/'))).header("Content-Type", "application/json");
        if let Some(token) = &self.options.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if let Some(store) = self.store.get() {
            request = request.header(STORE, store);
        }
        let lost = |e| Error::unavailable(format!("{server} did not answer: {e}"));
        let mut answer = request.config().timeout_global(Some(timeout)).build().send(body.to_string()).map_err(lost)?;
        let text = answer.body_mut().with_config().limit(MAX_ANSWER).read_to_vec().map_err(lost)?;
        let fields: Value = serde_json::from_slice(&text).unwrap_or_default();
        let header = |name| answer.headers().get(name).and_then(|value| value.to_str().ok());
        if answer.status() != 200 {
            let status = answer.status().as_u16();
            let Some(code) = fields["code"].as_str() else {
                return Err(Error::unavailable(format!("{server} answered with status {status}; is it a hapax server?")));
            };
            let after = header("Retry-After").and_then(|s| s.parse().ok()).map_or(Duration::ZERO, Duration::from_secs);
            let detail = fields["detail"].as_str().or(fields["title"].as_str()).unwrap_or_default();
            return Err(Error { code: code.into(), detail: detail.into(), last: REFUSED.contains(&status), status, retry_after: after.min(LONGEST) });
        }
        Ok((fields, header(STORE).map(String::from)))
    }
}
