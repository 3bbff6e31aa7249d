//! What a process has in hand of a tag.

use crate::servers::{Sent, Servers};
use crate::{lock, Code, Error, Options};
use serde_json::{json, Value};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub(crate) const MAX_COUNT: usize = 1_000_000;
const QUICK: Duration = Duration::from_secs(5); // that a stretch lasts, around
const SLOW: Duration = Duration::from_secs(20); // the ten seconds that it should
pub(crate) const PAUSE: Duration = Duration::from_millis(50); // after all servers were asked in vain; it doubles
pub(crate) const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Numbers that were taken, and those of them that nobody was given yet.
pub(crate) struct Stretch {
    numbers: Box<dyn ExactSizeIterator<Item = i64> + Send>,
    count: usize,
    receipt: Option<String>,
    returnable: u64,
    began: Instant,
    ends: Sent,
    keeps: bool, // false: for the call that asked
}

impl Stretch {
    pub(crate) fn read(answer: &Value, asked: usize, sent: Sent) -> Result<Stretch, String> {
        let count = answer["count"].as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| (1..=asked).contains(n)).ok_or("count")?;
        let valid = answer.get("valid_for").map_or(Some(0.0), Value::as_f64).filter(|seconds| *seconds >= 0.0).map(|seconds| Duration::from_secs_f64(seconds.min(1e9))).ok_or("valid_for")?;
        let number = |text: &Value| {
            let digits = text.as_str().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
            digits.and_then(|text| text.parse::<i64>().ok()).filter(|n| *n > 0).ok_or_else(|| format!("{:.40} is no number", text.to_string()))
        };
        let numbers: Box<dyn ExactSizeIterator<Item = i64> + Send> = if answer["first"].is_null() {
            let ids = answer["ids"].as_array().filter(|ids| ids.len() == count).ok_or("other than count numbers")?;
            Box::new(ids.iter().map(number).collect::<Result<Vec<i64>, String>>()?.into_iter())
        } else {
            let (first, delta) = (number(&answer["first"])?, number(&answer["delta"])?);
            delta.checked_mul(count as i64 - 1).and_then(|n| n.checked_add(first)).ok_or("a number of more than 63 bits")?;
            Box::new((0..count).map(move |i| first + i as i64 * delta))
        };
        let receipt = answer["receipt"].as_str().filter(|text| !text.is_empty()).map(String::from);
        let returnable = answer["returnable"].as_u64().unwrap_or(0);
        Ok(Stretch { numbers, count, receipt, returnable, began: sent.0, ends: Sent(sent.0 + valid, sent.1 + valid), keeps: !valid.is_zero() })
    }

    fn left(&self) -> usize {
        self.numbers.len()
    }
}

pub(crate) fn codes(answer: &Value, asked: usize, sent: Sent) -> Result<Vec<Code>, String> {
    let ids = Stretch::read(answer, asked, sent)?.numbers;
    let texts = answer["codes"].as_array().filter(|texts| texts.len() == ids.len()).ok_or("codes")?;
    let period = answer["period"].as_str().unwrap_or_default();
    let code = |(id, text): (i64, &Value)| Some(Code { id, text: text.as_str()?.into(), period: period.into() });
    ids.zip(texts).map(code).collect::<Option<Vec<Code>>>().ok_or("codes".into())
}

pub(crate) struct Line {
    pub(crate) path: String,
    pub(crate) hand: Mutex<Hand>, // never held while waiting
    changed: Condvar,             // a fetch ended, or the client is being closed
}

pub(crate) struct Hand {
    current: Option<Stretch>,
    spare: Option<Stretch>,
    fetches: u64, // that were begun; the last one is on its way if it is
    is_fetching: bool,
    pub(crate) step: usize,
    last: Option<String>, // the latest receipt
    dead: bool,           // it was handed back
    keeps: bool,          // false: every number is for the call that takes it
    pause: Duration,
    retry_at: Instant,
    pub(crate) said: Option<Error>, // the last that a server said since the fetch began
}

/// Ends a fetch, even if that panics.
pub(crate) struct Ending(Arc<Line>);

impl Drop for Ending {
    fn drop(&mut self) {
        lock(&self.0.hand).is_fetching = false;
        self.0.changed.notify_all();
    }
}

impl Line {
    pub(crate) fn new(path: String, step: usize) -> Line {
        let hand = Hand { current: None, spare: None, fetches: 0, is_fetching: false, step, last: None, dead: false, keeps: true, pause: PAUSE, retry_at: Instant::now(), said: None };
        Line { path, hand: Mutex::new(hand), changed: Condvar::new() }
    }

    /// Adds what is in hand to what a call has got, or gives that up where the first of it ended while the
    /// call waited. It returns the end of a fetch that the caller is to begin, and the number of the fetch
    /// that is on its way.
    pub(crate) fn pick(self: &Arc<Line>, options: &Options, count: usize, got: &mut Vec<i64>, ends: &mut Option<Sent>) -> (Option<Ending>, u64) {
        let mut hand = lock(&self.hand);
        ends.take_if(|ends| ends.over()).inspect(|_| got.clear());
        while got.len() < count {
            let Some(current) = hand.advance(options) else { break };
            ends.get_or_insert(current.ends);
            got.extend(current.numbers.by_ref().take(count - got.len()));
        }
        let half = hand.current.as_ref().is_some_and(|s| 2 * s.left() <= s.count);
        let ahead = options.ahead && hand.keeps && hand.spare.is_none() && half && Instant::now() >= hand.retry_at;
        let begins = !hand.is_fetching && (ahead || got.len() < count);
        hand.is_fetching |= begins;
        hand.fetches += u64::from(begins);
        hand.said.take_if(|_| begins);
        (begins.then(|| Ending(self.clone())), hand.fetches)
    }

    /// Waits until a fetch has ended, or the time has come. It reports whether the fetch has.
    pub(crate) fn wait(&self, fetch: u64, until: Instant) -> bool {
        self.wait_while(until, |hand| hand.is_fetching && hand.fetches == fetch)
    }

    /// Pauses until a time, or until the client is closed. It reports whether that is so.
    pub(crate) fn pause(&self, until: Instant, closed: &AtomicBool) -> bool {
        self.wait_while(until, |_| !closed.load(Ordering::SeqCst))
    }

    fn wait_while(&self, until: Instant, goes_on: impl Fn(&Hand) -> bool) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(lock(&self.hand), left, |hand| goes_on(hand));
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// How many to ask for, for a call that needs so many.
    pub(crate) fn count(&self, need: usize, modest: bool) -> usize {
        let hand = lock(&self.hand);
        if modest || !hand.keeps { need } else { hand.step.max(need).min(MAX_COUNT) }
    }

    /// Asks every server once for the next stretch. What must not be kept goes to the call.
    pub(crate) fn take(&self, servers: &Servers, count: usize, need: usize, until: Instant, got: &mut Vec<i64>) -> Result<(), Error> {
        let body = lock(&self.hand).last.as_ref().map_or_else(|| json!({ "count": count }), |last| json!({ "count": count, "after": last }));
        let stretch = servers.ask(&format!("{}/take", self.path), &body, until, |answer, sent| Stretch::read(answer, count, sent))?;
        let mut hand = lock(&self.hand);
        if hand.dead {
            return Ok(()); // a hand-back was sent
        }
        hand.keeps &= stretch.keeps; // for good
        if !hand.keeps {
            got.extend(stretch.numbers.take(need));
            return Ok(());
        }
        (hand.pause, hand.retry_at, hand.last) = (PAUSE, Instant::now(), stretch.receipt.clone());
        hand.spare = Some(stretch);
        Ok(())
    }

    /// Fetches the next stretch, and disturbs nobody if that fails.
    pub(crate) fn fetch_ahead(&self, servers: &Servers, options: &Options) {
        let count = lock(&self.hand).step;
        if let Err(e) = self.take(servers, count, 0, Instant::now() + options.deadline, &mut Vec::new()) {
            log::debug!("hapax: fetching ahead: {e}");
            let mut hand = lock(&self.hand);
            hand.retry_at = Instant::now() + hand.pause.max(e.retry_after);
            hand.pause = MAX_PAUSE.min(2 * hand.pause);
            if e.crowded() {
                hand.step = options.min_step;
            }
        }
    }

    /// Hands back what nobody was given. From here on it is dead, whatever the answer.
    pub(crate) fn hand_back(&self, servers: &Servers, until: Instant) {
        drop(lock(&self.hand)); // a caller that was about to pause does so
        self.changed.notify_all(); // and sees that the client is closed
        self.wait_while(until, |hand| hand.is_fetching);
        let mut hand = lock(&self.hand);
        hand.dead = true;
        let (current, spare) = (hand.current.take(), hand.spare.take());
        drop(hand);
        let earlier = current.as_ref().map_or(0, Stretch::left);
        let (Some(later), earlier) = (if spare.is_some() { (spare, earlier) } else { (current, 0) }) else { return };
        let mut unused = later.left();
        if later.returnable >= (unused + earlier) as u64 {
            unused += earlier; // the stretches adjoin
        }
        let Some(receipt) = later.receipt.filter(|_| unused > 0) else { return };
        if let Err(e) = servers.ask(&format!("{}/handback", self.path), &json!({ "receipt": receipt, "unused": unused }), until, |_, _| Ok(())) {
            log::debug!("hapax: handing back: {e}"); // a gap
        }
    }
}

impl Hand {
    /// Puts the spare stretch in the place of one that is used up or over, and lets the step
    /// follow. It returns one that has a number.
    fn advance(&mut self, options: &Options) -> Option<&mut Stretch> {
        while !self.current.as_ref().is_some_and(|s| s.left() > 0 && (!s.ends.over() || options.broken("goes past the end"))) {
            if let Some(current) = &self.current {
                let lasted = current.began.elapsed();
                if current.left() == 0 && lasted < QUICK {
                    self.step = options.max_step.min(2 * self.step);
                } else if lasted > SLOW {
                    self.step = options.min_step.max(self.step / 2);
                }
            }
            self.current = self.spare.take();
            self.current.as_mut()?.began = Instant::now();
        }
        self.current.as_mut()
    }
}
