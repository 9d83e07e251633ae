//! A store in a bucket: `s3://bucket/prefix`, at any service that speaks S3.
//!
//! An object is created by a PUT with `If-None-Match: *`, and swapped by one with `If-Match`.
//!
//! Invariants: a request that changes something is sent once, so that an answer is that of this
//! request; one that reads is repeated for [`READ_PATIENCE`], as a read of the volume has no other
//! try; only the service's own word `NoSuchKey` says that an object is missing; an answer that was
//! lost, late or cut is [`Failure::Other`]; no text has a secret.

mod answer;
mod client;

use super::store::{Failure, Store, Tag, Trouble};
use crate::error::{Error, Result as Checked};
use answer::{Answer, Asked};
use bytes::Bytes;
use object_store::aws::AmazonS3;
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutPayload, PutResult,
    UpdateVersion,
};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// What the place of a store in a bucket begins with.
const SCHEME: &str = "s3://";
/// Longest prefix in bytes: keys have at most 1024.
const PREFIX_MAX: usize = 512;
/// How long a request may take, with the answer's last byte.
const WHOLE: Duration = Duration::from_secs(60);

/// How long what reads is repeated.
const READ_PATIENCE: Duration = Duration::from_secs(5);
/// Shortest and longest pause before that.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// See the module.
pub struct S3 {
    bucket: String,
    prefix: String,
    client: AmazonS3,
    runtime: &'static Runtime,
    /// Whether a request was ever sent.
    was_sent: AtomicBool,
    /// When all requests must have ended, if the store is hurried.
    end: watch::Sender<Option<tokio::time::Instant>>,
}

/// Bucket and prefix of a place.
fn parse(place: &str) -> Checked<(&str, &str)> {
    // What is before an `@` may be secret, and is not repeated.
    let place = place.rsplit('@').next().unwrap_or_default();
    let wrong = |why: &str| {
        Err(Error::usage(format!("{place} is no place of a store: {why}"))
            .hint("write it like s3://bucket/prefix"))
    };
    let (bucket, prefix) = place.strip_prefix(SCHEME).unwrap_or_default().split_once('/').unzip();
    let (Some(bucket), Some(prefix)) = (bucket, prefix) else {
        return wrong("it names no bucket and prefix");
    };
    let is_bucket = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-".contains(c);
    if !(3..=63).contains(&bucket.len()) || !bucket.chars().all(is_bucket) {
        return wrong("a bucket has 3 to 63 of a-z, 0-9, . and -");
    }
    let is_word = |word: &str| {
        let known = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        !matches!(word, "" | "." | "..") && word.chars().all(known)
    };
    if prefix.len() > PREFIX_MAX || !prefix.split('/').all(is_word) {
        return wrong("a prefix is words of a-z, A-Z, 0-9, ., _ and -, with / between them");
    }
    Ok((bucket, prefix))
}

impl S3 {
    /// The store at `place`, like `s3://bucket/prefix`, by the environment's credentials and
    /// endpoint. Sends nothing.
    ///
    /// # Errors
    /// The place or the environment is wrong.
    pub fn open(place: &str) -> Checked<Self> {
        let (bucket, prefix) = parse(place)?;
        let (client, runtime) = (client::make(bucket)?, client::runtime()?);
        let (was_sent, end) = (AtomicBool::default(), watch::Sender::new(None));
        let (bucket, prefix) = (bucket.into(), prefix.into());
        Ok(Self { bucket, prefix, client, runtime, was_sent, end })
    }

    fn path(&self, key: &str) -> Path {
        Path::from(format!("{}/{key}", self.prefix))
    }

    /// Waits for the answer to a request.
    fn ask<T>(
        &self,
        asked: Asked,
        key: &str,
        work: impl Future<Output = object_store::Result<T>>,
    ) -> Result<(T, Answer), Failure> {
        let heard = answer::Heard::new(format!("/{}/{key}", self.prefix));
        let answered = self.runtime.block_on(async {
            let heard = heard.clone();
            let work = tokio::time::timeout(WHOLE, answer::HEARD.scope(heard, work));
            tokio::select! {
                done = work => done.ok(),
                () = self.ended() => None,
            }
        });
        let mut answer = heard.take();
        answer.was_sent = self.was_sent.fetch_or(answer.sent, Ordering::Relaxed);
        let error = match answered {
            Some(Ok(done)) => return Ok((done, answer)),
            Some(Err(e)) => Some(e),
            None => None,
        };
        Err(answer.failure(asked, &format!("{}/{key}", self.place()), error.as_ref()))
    }

    /// Waits until all requests must have ended.
    async fn ended(&self) {
        let mut heard = self.end.subscribe();
        match heard.wait_for(Option::is_some).await.map(|end| *end) {
            Ok(Some(end)) => tokio::time::sleep_until(end).await,
            // The store is gone, and with it all that waits.
            _ => std::future::pending().await,
        }
    }

    /// An object, or a part of it.
    fn read(&self, key: &str, range: Option<Range<u64>>) -> Result<Read, Failure> {
        let until = Instant::now() + READ_PATIENCE;
        let mut pause = PAUSES.0;
        loop {
            match self.read_once(key, range.clone()) {
                Err(Failure::Other(trouble))
                    if !trouble.lasts()
                        && trouble.errno != answer::BEHIND_END
                        && Instant::now() + pause < until =>
                {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(PAUSES.1);
                }
                answer => return answer,
            }
        }
    }

    fn read_once(&self, key: &str, range: Option<Range<u64>>) -> Result<Read, Failure> {
        let path = self.path(key);
        let (read, answer) = self.ask(Asked::Read, key, async {
            let options = GetOptions { range: range.map(GetRange::Bounded), ..Default::default() };
            let found = self.client.get_opts(&path, options).await?;
            let (meta, expected) = (found.meta.clone(), found.range.end - found.range.start);
            Ok((found.bytes().await?, meta, expected))
        })?;
        let (content, meta, expected) = read;
        if content.len() as u64 != expected {
            let text = format!("cannot read {}/{key}: the answer was cut", self.place());
            return Err(other(Errno::IO, text));
        }
        Ok(Read { content: content.into(), meta, answer })
    }

    fn write(&self, asked: Asked, key: &str, payload: PutPayload) -> Result<PutResult, Failure> {
        let mode = match &asked {
            Asked::Create => PutMode::Create,
            Asked::Swap(tag) => {
                PutMode::Update(UpdateVersion { e_tag: Some(tag.0.clone()), version: None })
            }
            _ => PutMode::Overwrite,
        };
        let path = self.path(key);
        let put = self.client.put_opts(&path, payload, mode.into());
        self.ask(asked, key, put).map(|(done, _)| done)
    }
}

fn copied(content: &[u8]) -> PutPayload {
    Bytes::copy_from_slice(content).into()
}

/// An object that was read.
struct Read {
    content: Vec<u8>,
    meta: ObjectMeta,
    answer: Answer,
}

fn other(errno: Errno, text: String) -> Failure {
    Failure::Other(Trouble { errno: errno.raw_os_error(), text })
}

impl Store for S3 {
    fn place(&self) -> String {
        format!("{SCHEME}{}/{}", self.bucket, self.prefix)
    }

    fn needs(&self) -> &'static str {
        "use a bucket with conditional writes, and a key that may read, write, remove and list"
    }

    fn hurry(&self, most: Duration) {
        self.end.send_replace(Some(tokio::time::Instant::now() + most));
    }

    fn prepare(&self) -> Checked<()> {
        Ok(()) // keys need no directories
    }

    fn create(&self, key: &str, content: &[u8]) -> Result<(), Failure> {
        self.write(Asked::Create, key, copied(content)).map(drop)
    }

    fn create_large(&self, key: &str, content: &[Bytes]) -> Result<(), Failure> {
        self.write(Asked::Create, key, content.iter().cloned().collect()).map(drop)
    }

    fn get(&self, key: &str) -> Result<(Vec<u8>, Tag), Failure> {
        let Read { content, meta, .. } = self.read(key, None)?;
        let tag = meta.e_tag.ok_or_else(|| {
            let text = format!("cannot use {}/{key}: the answer has no ETag", self.place());
            other(Errno::IO, text)
        })?;
        Ok((content, Tag(tag)))
    }

    fn get_range(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, Failure> {
        match self.read(key, Some(range)) {
            Ok(read) => Ok(read.content),
            Err(Failure::Other(trouble)) if trouble.errno == answer::BEHIND_END => Ok(Vec::new()),
            Err(failure) => Err(failure),
        }
    }

    fn swap(&self, key: &str, content: &[u8], before: &Tag) -> Result<Tag, Failure> {
        let done = self.write(Asked::Swap(before.clone()), key, copied(content))?;
        // Done, but the caller needs the tag: it reads the object, as after a lost answer.
        let text = || format!("wrote {}/{key}, and the answer has no ETag", self.place());
        done.e_tag.map(Tag).ok_or_else(|| other(Errno::IO, text()))
    }

    fn put(&self, key: &str, content: &[u8]) -> Result<(), Failure> {
        self.write(Asked::Write, key, copied(content)).map(drop)
    }

    fn remove(&self, key: &str) -> Result<(), Failure> {
        let path = self.path(key);
        self.ask(Asked::Remove, key, self.client.delete(&path)).map(drop)
    }

    fn age(&self, key: &str) -> Result<Duration, Failure> {
        let Read { meta, answer, .. } = self.read(key, None)?;
        let Some(now) = answer.date else {
            let text = format!("cannot tell the age of {}/{key}: no Date", self.place());
            return Err(other(Errno::IO, text));
        };
        let seconds = now - meta.last_modified.timestamp();
        Ok(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_place_has_a_bucket_and_a_prefix() {
        assert_eq!(parse("s3://bucket/prefix").unwrap(), ("bucket", "prefix"));
        assert_eq!(parse("s3://b.2-x/a/B_c/d.e").unwrap(), ("b.2-x", "a/B_c/d.e"));
        for bad in [
            "s3://",
            "s3://bucket",
            "s3:///prefix",
            "s3://bucket/",
            "s3://bucket/a/",
            "s3://b/a",
            "s3://bucket//a",
            "s3://bucket/a/../b",
            "s3://bucket/ä",
            "s3://bucket/a b",
            "s3://Bucket/a",
            "s3://key:secret@bucket/a",
            "s3://bucket/a?x",
            "s3://bucket/a%20",
            "file:///bucket/a",
            "s3://bucket/a\nb",
        ] {
            let said = parse(bad).unwrap_err().to_string();
            assert!(said.contains("write it like s3://bucket/prefix"), "{bad}: {said}");
            assert_eq!(said.lines().count(), 1);
        }
        assert!(parse(&format!("s3://bucket/{}", "a".repeat(PREFIX_MAX + 1))).is_err());
    }
}
