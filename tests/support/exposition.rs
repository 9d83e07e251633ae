//! A strict parser of Prometheus' text format 0.0.4. It is stricter than the format, so that even a
//! strict scraper accepts the text.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
pub struct Family {
    pub name: String,
    pub kind: String,
    pub help: String,
    pub samples: Vec<Sample>,
}

#[derive(Debug)]
pub struct Sample {
    /// The name with its suffix.
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

type Result<T> = std::result::Result<T, String>;

/// All families of a text, or the first error in it.
pub fn parse(text: &str) -> Result<Vec<Family>> {
    if !text.is_empty() && !text.ends_with('\n') {
        return Err("the last line has no end".into());
    }
    let mut families: Vec<Family> = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let wrong = |what: &str| Err(format!("{what}: {line:?}"));
        let Some(help) = line.strip_prefix("# HELP ") else { return wrong("no HELP") };
        let Some((name, help)) = help.split_once(' ') else { return wrong("HELP without text") };
        let kind = lines.next().and_then(|line| line.strip_prefix("# TYPE "));
        let Some((typed, kind)) = kind.and_then(|kind| kind.split_once(' ')) else {
            return wrong("no TYPE after");
        };
        if typed != name || !is_name(name) || !help_is_escaped(help) {
            return wrong("a bad head");
        }
        if !["counter", "gauge", "histogram", "summary"].contains(&kind) {
            return wrong("no such type");
        }
        if families.iter().any(|family| family.name == name) {
            return wrong("the family was there before");
        }
        let mut samples = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            samples.push(sample(line).map_err(|what| format!("{what}: {line:?}"))?);
        }
        let (name, kind, help) = (name.to_owned(), kind.to_owned(), help.to_owned());
        let family = Family { name, kind, help, samples };
        check(&family).map_err(|what| format!("{what} in {}", family.name))?;
        families.push(family);
    }
    Ok(families)
}

fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn help_is_escaped(help: &str) -> bool {
    let mut chars = help.chars();
    while let Some(c) = chars.next() {
        if c == '\\' && !matches!(chars.next(), Some('\\' | 'n')) {
            return false;
        }
    }
    !help.is_empty()
}

fn sample(line: &str) -> Result<Sample> {
    let end = line.find(['{', ' ']).ok_or("no value")?;
    let (name, mut rest) = line.split_at(end);
    if !is_name(name) {
        return Err("no name".into());
    }
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, after) = rest.split_once("=\"").ok_or("a label without value")?;
            let (value, after) = label_value(after)?;
            if !is_name(label) || labels.insert(label.to_owned(), value).is_some() {
                return Err(format!("a bad or repeated label {label:?}"));
            }
            rest = match after.strip_prefix(',') {
                Some(next) => next,
                None => {
                    rest = after;
                    break;
                }
            };
        }
        rest = rest.strip_prefix('}').ok_or("labels without end")?;
    }
    let value = rest.strip_prefix(' ').ok_or("no space before the value")?;
    let number = match value {
        "+Inf" | "-Inf" | "NaN" => return Err("no number that is known".into()),
        value => value.parse::<f64>().map_err(|e| e.to_string())?,
    };
    if value.contains(|c: char| !(c.is_ascii_digit() || ".-+e".contains(c))) {
        return Err("not a plain number".into());
    }
    Ok(Sample { name: name.to_owned(), labels, value: number })
}

/// A label's value up to its closing quote, and the rest of the text.
fn label_value(text: &str) -> Result<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => value.push(match chars.next() {
                Some((_, '\\')) => '\\',
                Some((_, '"')) => '"',
                Some((_, 'n')) => '\n',
                _ => return Err("a bad escape".into()),
            }),
            c => value.push(c),
        }
    }
    Err("a value without end".into())
}

fn check(family: &Family) -> Result<()> {
    if family.samples.is_empty() {
        return Err("no samples".into());
    }
    let mut seen = BTreeSet::new();
    for sample in &family.samples {
        if !seen.insert((&sample.name, &sample.labels)) {
            return Err(format!("twice the same: {sample:?}"));
        }
        let suffix = sample.name.strip_prefix(&family.name).ok_or("another's sample")?;
        let has = |label: &str| sample.labels.contains_key(label);
        let right = match (family.kind.as_str(), suffix) {
            ("histogram", "_bucket") => has("le"),
            ("summary", "") => has("quantile") && !has("le"),
            ("histogram" | "summary", "_sum" | "_count") => !has("le") && !has("quantile"),
            ("counter" | "gauge", "") => !has("le") && !has("quantile"),
            _ => false,
        };
        if !right {
            return Err(format!("a sample that does not belong there: {sample:?}"));
        }
        if family.kind != "gauge" && sample.value < 0.0 {
            return Err(format!("less than nothing: {sample:?}"));
        }
    }
    if matches!(family.kind.as_str(), "histogram" | "summary") {
        check_parts(family)?;
    }
    Ok(())
}

/// Checks a histogram's buckets, sum and count, and a summary's sum and count.
fn check_parts(family: &Family) -> Result<()> {
    let mut series: BTreeMap<BTreeMap<String, String>, Vec<&Sample>> = BTreeMap::new();
    for sample in &family.samples {
        let mut labels = sample.labels.clone();
        labels.remove("le");
        labels.remove("quantile");
        series.entry(labels).or_default().push(sample);
    }
    for (labels, samples) in series {
        let part = |suffix: &str| {
            let name = format!("{}{suffix}", family.name);
            samples.iter().find(|sample| sample.name == name).map(|sample| sample.value)
        };
        let (Some(_), Some(count)) = (part("_sum"), part("_count")) else {
            return Err(format!("no sum or count of {labels:?}"));
        };
        if family.kind == "summary" {
            continue;
        }
        let (mut bound, mut below) = (f64::NEG_INFINITY, 0.0);
        for bucket in samples.iter().filter(|sample| sample.labels.contains_key("le")) {
            let le: f64 = match bucket.labels["le"].as_str() {
                "+Inf" => f64::INFINITY,
                le => le.parse().map_err(|_| format!("le={le:?}"))?,
            };
            if le <= bound || bucket.value < below {
                return Err(format!("buckets out of order at {bucket:?}"));
            }
            (bound, below) = (le, bucket.value);
        }
        if bound != f64::INFINITY || below != count {
            return Err(format!("the last bucket of {labels:?} is not the count"));
        }
    }
    Ok(())
}
