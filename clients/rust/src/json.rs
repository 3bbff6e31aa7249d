//! Reads JSON as far as servers send it.

use std::{iter::Peekable, str::Chars};

pub(crate) enum Json {
    Object(Vec<(String, Json)>),
    Array(Vec<Json>),
    Text(String),
    Number(f64),
    Other,
}

const MAX_DEPTH: u32 = 32;

impl Json {
    /// Reads a text, which must be one JSON value.
    pub(crate) fn read(text: &str) -> Option<Json> {
        let mut rest = text.chars().peekable();
        let value = value(&mut rest, 0)?;
        blanks(&mut rest);
        rest.next().is_none().then_some(value)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Json> {
        match self {
            Json::Object(fields) => fields.iter().find(|(key, _)| key == name).map(|(_, value)| value),
            _ => None,
        }
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(Json::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// A number; 0 if it is missing, and NaN if it is something else.
    pub(crate) fn number(&self, name: &str) -> f64 {
        match self.get(name) {
            Some(Json::Number(n)) => *n,
            Some(_) => f64::NAN,
            None => 0.0,
        }
    }

    /// An array of so many; empty if it is something else.
    pub(crate) fn array(&self, name: &str, count: usize) -> &[Json] {
        match self.get(name) {
            Some(Json::Array(all)) if all.len() == count => all,
            _ => &[],
        }
    }
}

/// Returns a text in quotes.
pub(crate) fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            ' '.. => out.push(c),
            _ => out.push_str(&format!("\\u{:04x}", c as u32)),
        }
    }
    out + "\""
}

type Rest<'a> = Peekable<Chars<'a>>;

fn blanks(rest: &mut Rest) {
    while rest.next_if(|c| " \t\r\n".contains(*c)).is_some() {}
}

fn passes(rest: &mut Rest, c: char) -> bool {
    blanks(rest);
    rest.next_if_eq(&c).is_some()
}

/// Reads what is in brackets up to the closing one.
fn list(rest: &mut Rest, end: char, mut one: impl FnMut(&mut Rest) -> Option<()>) -> Option<()> {
    if passes(rest, end) {
        return Some(());
    }
    loop {
        one(rest)?;
        if passes(rest, end) {
            return Some(());
        }
        passes(rest, ',').then_some(())?;
    }
}

fn value(rest: &mut Rest, depth: u32) -> Option<Json> {
    if depth > MAX_DEPTH {
        return None;
    }
    if passes(rest, '{') {
        let mut all = Vec::new();
        list(rest, '}', |rest| {
            passes(rest, '"').then_some(())?;
            let key = string(rest)?;
            passes(rest, ':').then_some(())?;
            all.push((key, value(rest, depth + 1)?));
            Some(())
        })?;
        return Some(Json::Object(all));
    }
    if passes(rest, '[') {
        let mut all = Vec::new();
        list(rest, ']', |rest| {
            all.push(value(rest, depth + 1)?);
            Some(())
        })?;
        return Some(Json::Array(all));
    }
    if passes(rest, '"') {
        return string(rest).map(Json::Text);
    }
    let mut word = String::new();
    while let Some(c) = rest.next_if(|c| c.is_ascii_alphanumeric() || "+-.".contains(*c)) {
        word.push(c);
    }
    match word.as_str() {
        "true" | "false" | "null" => Some(Json::Other),
        _ if word.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => word.parse().ok().map(Json::Number),
        _ => None,
    }
}

/// Reads a string after its first quote.
fn string(rest: &mut Rest) -> Option<String> {
    let mut out = Vec::new();
    loop {
        match rest.next()? {
            '"' => return String::from_utf16(&out).ok(),
            '\\' => match rest.next()? {
                'u' => {
                    let digits: String = rest.by_ref().take(4).collect();
                    out.push(u16::from_str_radix(&digits, 16).ok()?);
                }
                c => out.push(*b"\x08\x0c\n\r\t\"\\/".get("bfnrt\"\\/".find(c)?)? as u16),
            },
            c => out.extend_from_slice(c.encode_utf16(&mut [0; 2])),
        }
    }
}
