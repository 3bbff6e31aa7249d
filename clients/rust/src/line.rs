//! What a process has in hand of a tag.

use crate::json::{quote, Json};
use crate::servers::{Sent, Servers};
use crate::{lock, Builder, Code, Error};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime};

pub(crate) const MAX_COUNT: usize = 1_000_000;
const QUICK: Duration = Duration::from_secs(5); // that a stretch lasts, around
const SLOW: Duration = Duration::from_secs(20); // the ten seconds that it should
pub(crate) const PAUSE: Duration = Duration::from_millis(50); // after all servers were asked in vain; it doubles
pub(crate) const MAX_PAUSE: Duration = Duration::from_secs(1);

enum Numbers {
    Run { first: i64, delta: i64 },
    List(Vec<i64>),
}

/// Numbers that were taken, and how many of them are used.
pub(crate) struct Stretch {
    numbers: Numbers,
    count: usize,
    used: usize,
    receipt: Option<String>,
    returnable: f64,
    keeps: bool, // false: for the call that asked
    began: Instant,
    sent: Sent,
    valid: Duration,
}

impl Stretch {
    pub(crate) fn read(answer: &Json, asked: usize, sent: Sent) -> Result<Stretch, String> {
        let (count, valid) = (answer.number("count"), answer.number("valid_for"));
        if count.fract() != 0.0 || !(1.0..=asked as f64).contains(&count) || !(valid >= 0.0) {
            return Err("a wrong count or valid_for".into());
        }
        let number = |text: Option<&str>| {
            let digits = text.filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
            digits.and_then(|text| text.parse::<i64>().ok()).filter(|n| *n > 0).ok_or_else(|| format!("{text:?} is no number"))
        };
        let numbers = if answer.get("first").is_some() {
            let (first, delta) = (number(answer.text("first"))?, number(answer.text("delta"))?);
            delta.checked_mul(count as i64 - 1).and_then(|n| n.checked_add(first)).ok_or("a number of more than 63 bits")?;
            Numbers::Run { first, delta }
        } else {
            let ids = answer.array("ids", count as usize).iter().map(|id| match id {
                Json::Text(text) => number(Some(text)),
                _ => number(None),
            });
            let ids = ids.collect::<Result<Vec<i64>, String>>()?;
            (ids.len() == count as usize).then_some(Numbers::List(ids)).ok_or("other than count numbers")?
        };
        let receipt = answer.text("receipt").filter(|text| !text.is_empty()).map(String::from);
        let valid_for = Duration::from_secs_f64(valid.min(1e9));
        Ok(Stretch { numbers, count: count as usize, used: 0, receipt, returnable: answer.number("returnable"), keeps: valid > 0.0, began: sent.0, sent, valid: valid_for })
    }

    fn left(&self) -> usize {
        self.count - self.used
    }

    fn over(&self) -> bool {
        // The monotonic clock may stand still while a machine sleeps.
        let wall = SystemTime::now().duration_since(self.sent.1).unwrap_or_default();
        self.sent.0.elapsed() >= self.valid || wall >= self.valid
    }

    fn fill(&mut self, got: &mut Vec<i64>, count: usize) {
        let places = self.used..self.used + self.left().min(count - got.len());
        self.used = places.end;
        match &self.numbers {
            Numbers::Run { first, delta } => got.extend(places.map(|i| first + i as i64 * delta)),
            Numbers::List(ids) => got.extend_from_slice(&ids[places]),
        }
    }
}

pub(crate) fn codes(answer: &Json, asked: usize, sent: Sent) -> Result<Vec<Code>, String> {
    let mut stretch = Stretch::read(answer, asked, sent)?;
    let mut ids = Vec::new();
    stretch.fill(&mut ids, asked);
    let texts = answer.array("codes", ids.len());
    let period = answer.text("period").unwrap_or_default();
    let codes: Vec<Code> = ids.iter().zip(texts).filter_map(|(id, text)| match text {
        Json::Text(text) => Some(Code { id: *id, text: text.clone(), period: period.into() }),
        _ => None,
    }).collect();
    (codes.len() == ids.len()).then_some(codes).ok_or("no codes".into())
}

/// A fetch on its way, for which callers wait.
#[derive(Default)]
pub(crate) struct Fetch {
    done: Mutex<bool>,
    changed: Condvar,
}

impl Fetch {
    /// Waits until it is done, or the time has come. It reports whether it is done.
    pub(crate) fn wait(&self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(lock(&self.done), left, |done| !*done);
        *waited.unwrap_or_else(|broken| broken.into_inner()).0
    }
}

pub(crate) struct Line {
    pub(crate) path: String,
    pub(crate) hand: Mutex<Hand>, // never held while waiting
}

pub(crate) struct Hand {
    current: Option<Stretch>,
    spare: Option<Stretch>,
    fetch: Option<Arc<Fetch>>, // the one on its way
    pub(crate) step: usize,
    last: Option<String>, // the latest receipt
    dead: bool,           // it was handed back
    keeps: bool,          // false: every number is for the call that takes it
    pause: Duration,
    retry_at: Instant,
}

/// What a call does next.
pub(crate) enum Next {
    Done,
    FetchAhead(Ending),
    Fetch(Ending),
    Wait(Arc<Fetch>),
}

/// Ends a fetch, even if that panics.
pub(crate) struct Ending(Arc<Line>, Arc<Fetch>);

impl Drop for Ending {
    fn drop(&mut self) {
        lock(&self.0.hand).fetch = None;
        *lock(&self.1.done) = true;
        self.1.changed.notify_all();
    }
}

impl Line {
    pub(crate) fn new(path: String, step: usize) -> Line {
        let hand = Hand { current: None, spare: None, fetch: None, step, last: None, dead: false, keeps: true, pause: PAUSE, retry_at: Instant::now() };
        Line { path, hand: Mutex::new(hand) }
    }

    /// Adds what is in hand to what a call has got.
    pub(crate) fn pick(self: &Arc<Line>, options: &Builder, count: usize, got: &mut Vec<i64>) -> Next {
        let mut hand = lock(&self.hand);
        while got.len() < count && hand.advance(options) {
            hand.current.as_mut().expect("advance found one").fill(got, count);
        }
        let enough = got.len() == count;
        let half = hand.current.as_ref().is_some_and(|s| 2 * s.used >= s.count);
        let ahead = options.ahead && hand.keeps && hand.spare.is_none() && half && Instant::now() >= hand.retry_at;
        match &hand.fetch {
            Some(_) if enough => return Next::Done,
            Some(fetch) => return Next::Wait(fetch.clone()),
            None if enough && !ahead => return Next::Done,
            None => {}
        }
        let fetch = Arc::new(Fetch::default());
        hand.fetch = Some(fetch.clone());
        let ending = Ending(self.clone(), fetch);
        if enough { Next::FetchAhead(ending) } else { Next::Fetch(ending) }
    }

    /// How many to ask for, for a call that needs so many.
    pub(crate) fn count(&self, need: usize, modest: bool) -> usize {
        let hand = lock(&self.hand);
        if modest || !hand.keeps { need } else { hand.step.max(need).min(MAX_COUNT) }
    }

    /// Asks every server once for the next stretch. What must not be kept goes to the call.
    pub(crate) fn take(&self, servers: &Servers, count: usize, need: usize, until: Instant, got: &mut Vec<i64>) -> Result<(), Error> {
        let after = lock(&self.hand).last.as_ref().map_or(String::new(), |r| format!(",\"after\":{}", quote(r)));
        let body = format!("{{\"count\":{count}{after}}}");
        let mut stretch = servers.ask(&format!("{}/take", self.path), &body, until, |answer, sent| Stretch::read(answer, count, sent))?;
        let mut hand = lock(&self.hand);
        if hand.dead {
            return Ok(()); // a hand-back was sent
        }
        hand.keeps = stretch.keeps;
        if !stretch.keeps {
            stretch.fill(got, got.len() + need);
            return Ok(());
        }
        (hand.pause, hand.retry_at) = (PAUSE, Instant::now());
        hand.last = stretch.receipt.clone();
        hand.spare = Some(stretch);
        Ok(())
    }

    /// Fetches the next stretch, and disturbs nobody if that fails.
    pub(crate) fn fetch_ahead(&self, servers: &Servers, options: &Builder) {
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
        let fetch = lock(&self.hand).fetch.clone();
        if let Some(fetch) = fetch {
            fetch.wait(until);
        }
        let (current, spare) = {
            let mut hand = lock(&self.hand);
            hand.dead = true;
            (hand.current.take(), hand.spare.take())
        };
        let earlier = current.as_ref().map_or(0, Stretch::left);
        let (Some(later), earlier) = (if spare.is_some() { (spare, earlier) } else { (current, 0) }) else { return };
        let mut unused = later.left();
        if later.returnable >= (unused + earlier) as f64 {
            unused += earlier; // the stretches adjoin
        }
        let Some(receipt) = later.receipt.filter(|_| unused > 0) else { return };
        let body = format!("{{\"receipt\":{},\"unused\":{unused}}}", quote(&receipt));
        if let Err(e) = servers.ask(&format!("{}/handback", self.path), &body, until, |_, _| Ok(())) {
            log::debug!("hapax: handing back: {e}"); // a gap
        }
    }
}

impl Hand {
    /// Puts the spare stretch in the place of one that is used up or over, and lets the step
    /// follow. It reports whether there is a number.
    fn advance(&mut self, options: &Builder) -> bool {
        loop {
            if let Some(current) = &self.current {
                if current.left() > 0 && (!current.over() || options.broken("goes past the end")) {
                    return true;
                }
                let lasted = current.began.elapsed();
                if current.left() == 0 && lasted < QUICK {
                    self.step = options.max_step.min(2 * self.step);
                } else if lasted > SLOW {
                    self.step = options.min_step.max(self.step / 2);
                }
            }
            self.current = self.spare.take();
            match &mut self.current {
                Some(current) => current.began = Instant::now(),
                None => return false,
            }
        }
    }
}

/// A flag that waiting callers see at once.
#[derive(Default)]
pub(crate) struct Closed {
    flag: AtomicBool,
    fetch: Fetch,
}

impl Closed {
    pub(crate) fn is_set(&self) -> bool {
        self.flag.load(Ordering::SeqCst)
    }

    pub(crate) fn set(&self) -> bool {
        *lock(&self.fetch.done) = true;
        self.fetch.changed.notify_all();
        self.flag.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn wait(&self, until: Instant) -> bool {
        self.fetch.wait(until)
    }
}
