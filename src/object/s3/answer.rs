//! What the service has answered to a request, beside what the library tells of it: the status, the
//! word of an error, and the service's time.
//!
//! Invariant: a text of a failure is one line of ours: of the answer it has the status and the
//! error's word, of the way there the innermost cause.

use super::super::store::{Failure, Tag, Trouble};
use chrono::DateTime;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// The error number of a range that begins behind the end of an object.
pub const BEHIND_END: i32 = Errno::SPIPE.raw_os_error();
/// Longest text of an error that is looked at, and longest cause that is told, in bytes.
const BODY_MAX: u64 = 64 << 10;
const CAUSE_MAX: usize = 160;
/// How long a request for credentials may take: a machine that is none of a cloud has no answer.
const CREDENTIALS: Duration = Duration::from_secs(5);
/// Longest word of an error.
const WORD_MAX: usize = 48;

tokio::task_local! {
    /// Where the answer to the request of this task is noted.
    pub static HEARD: Heard;
}

/// What was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// To read.
    Read,
    /// To create what is missing.
    Create,
    /// To write in the place of what has this tag.
    Swap(Tag),
    /// To write, whatever is there.
    Write,
    /// To remove.
    Remove,
}

/// The answer to a request.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Whether the request was sent: before that, credentials are fetched.
    pub sent: bool,
    /// Whether an earlier request was sent: then there are credentials, and only fresh ones lack.
    pub was_sent: bool,
    /// The HTTP status.
    status: Option<u16>,
    /// The word of an error, like `NoSuchKey`.
    word: String,
    /// The service's time, in seconds since 1970.
    pub date: Option<i64>,
}

/// An answer that is noted while it comes.
#[derive(Clone, Debug)]
pub struct Heard {
    /// How the path of the request ends; requests for credentials have other ones.
    path: Arc<str>,
    answer: Arc<Mutex<Answer>>,
}

impl Heard {
    /// For a request whose path ends so.
    pub fn new(path: String) -> Self {
        Self { path: path.into(), answer: Arc::default() }
    }

    /// The answer as far as it has come.
    pub fn take(&self) -> Answer {
        self.answer.lock().clone()
    }
}

/// Makes clients that note answers.
#[derive(Debug)]
pub struct Watching;

impl HttpConnector for Watching {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Watched(ReqwestConnector::default().connect(options)?)))
    }
}

#[derive(Debug)]
struct Watched(HttpClient);

type Called<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

impl HttpService for Watched {
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> Called<'b>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let heard = HEARD.try_with(Heard::clone).ok();
            let heard = heard.filter(|heard| request.uri().path().ends_with(&*heard.path));
            let Some(heard) = heard else {
                let fetched = tokio::time::timeout(CREDENTIALS, self.0.execute(request)).await;
                return fetched.map_err(|late| HttpError::new(HttpErrorKind::Timeout, late))?;
            };
            heard.answer.lock().sent = true;
            let response = self.0.execute(request).await?;
            let status = response.status();
            let header = |name| response.headers().get(name)?.to_str().ok();
            let date = header("date").and_then(|date| DateTime::parse_from_rfc2822(date).ok());
            let length = header("content-length").and_then(|length| length.parse().ok());
            {
                let mut answer = heard.answer.lock();
                answer.status = Some(status.as_u16());
                answer.date = date.map(|date| date.timestamp());
            }
            if status.is_success() {
                return Ok(response);
            }
            // A HEAD has no body, whatever the length; it is not asked for.
            let (parts, body) = response.into_parts();
            let read = length.is_none_or(|length: u64| length <= BODY_MAX);
            let body =
                if read { body.bytes().await.unwrap_or_default() } else { Default::default() };
            heard.answer.lock().word = word(&body);
            Ok(HttpResponse::from_parts(parts, body.into()))
        })
    }
}

/// The word in the text of an error: `<Code>NoSuchKey</Code>`. Empty: it has none.
fn word(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let found = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
    let word = found.map_or("", |(word, _)| word.trim());
    let is_word = word.len() <= WORD_MAX && word.chars().all(|c| c.is_ascii_alphanumeric());
    if is_word { word.to_owned() } else { String::new() }
}

impl Answer {
    /// The failure that it is; `error` is the library's, `None`: it took too long.
    pub fn failure(
        &self,
        asked: Asked,
        object: &str,
        error: Option<&object_store::Error>,
    ) -> Failure {
        match (self.status, &asked, &*self.word) {
            (Some(404), _, "NoSuchKey") => return Failure::Missing,
            (Some(412), Asked::Create, _) => return Failure::Exists,
            (Some(412), Asked::Swap(_), _) => return Failure::Changed,
            _ => {}
        }
        let what = match asked {
            Asked::Read => "read",
            Asked::Create | Asked::Swap(_) | Asked::Write => "write",
            Asked::Remove => "remove",
        };
        let (errno, why) = match self.status.filter(|status| *status >= 300) {
            Some(status) => self.refusal(status, what),
            None => self.loss(error),
        };
        let text = format!("cannot {what} {object}: {why}");
        Failure::Other(Trouble { errno: errno.raw_os_error(), text })
    }

    /// Why the service refused.
    fn refusal(&self, status: u16, what: &str) -> (Errno, String) {
        let said = format!("{status} {}", self.word);
        let said = said.trim_end();
        match (status, &*self.word) {
            (404, "NoSuchBucket") => (Errno::NXIO, format!("{said}: there is no such bucket")),
            (301 | 307 | 308, _) => {
                (Errno::NXIO, format!("{said}: the bucket is elsewhere: set AWS_REGION"))
            }
            (403, "RequestTimeTooSkewed") => {
                (Errno::IO, format!("{said}: the clock of this machine is wrong"))
            }
            (403, "AccessDenied" | "") => {
                let rights = match what {
                    "read" => "s3:GetObject, and s3:ListBucket to be told what is missing",
                    "write" => "s3:PutObject",
                    _ => "s3:DeleteObject",
                };
                (Errno::ACCESS, format!("{said}: the key needs the right {rights}"))
            }
            (401 | 403, _) => {
                (Errno::ACCESS, format!("{said}: look at AWS_ACCESS_KEY_ID and its secret"))
            }
            (416, _) => (Errno::SPIPE, format!("{said}: it ends before")),
            (408, _) => (Errno::TIMEDOUT, format!("the store says {said}")),
            _ => (Errno::IO, format!("the store says {said}")),
        }
    }

    /// Why there is no answer, or a part of one.
    fn loss(&self, error: Option<&object_store::Error>) -> (Errno, String) {
        let (mut http, mut last): (Option<&HttpError>, Option<&dyn Error>) = (None, None);
        let mut next = error.map(|e| e as &(dyn Error + 'static));
        while let Some(e) = next {
            http = http.or(e.downcast_ref());
            (last, next) = (Some(e), e.source());
        }
        let is_late = error.is_none() || http.is_some_and(|e| e.kind() == HttpErrorKind::Timeout);
        if !self.sent {
            let why = if is_late { ": no answer in time" } else { "" };
            if self.was_sent {
                let errno = if is_late { Errno::TIMEDOUT } else { Errno::IO };
                return (errno, format!("no fresh credentials{why}"));
            }
            let advice =
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role";
            return (Errno::ACCESS, format!("no credentials{why} ({advice})"));
        }
        if is_late {
            return (Errno::TIMEDOUT, "no answer in time".into());
        }
        // Only of the way there: the library's own errors repeat what was asked or answered.
        let cause = http.and(last).map(|e| e.to_string());
        let cause = cause.and_then(|cause| {
            let line = cause.lines().next()?.trim().to_owned();
            Some(line[..line.floor_char_boundary(CAUSE_MAX)].to_owned())
        });
        (Errno::IO, cause.unwrap_or_else(|| "the answer can't be understood".into()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn refused(asked: Asked, status: u16, word: &str) -> Failure {
        let (sent, word) = (true, word.into());
        let answer = Answer { sent, status: Some(status), word, ..Answer::default() };
        answer.failure(asked, "s3://b/p/k", None)
    }

    #[test]
    fn each_answer_is_its_failure_and_only_no_such_key_is_missing() {
        let swap = || Asked::Swap(Tag("t".into()));
        assert_eq!(refused(Asked::Read, 404, "NoSuchKey"), Failure::Missing);
        assert_eq!(refused(swap(), 404, "NoSuchKey"), Failure::Missing);
        assert_eq!(refused(Asked::Create, 412, "PreconditionFailed"), Failure::Exists);
        assert_eq!(refused(swap(), 412, ""), Failure::Changed);
        let trouble = |asked, status, word| match refused(asked, status, word) {
            Failure::Other(trouble) => (trouble.errno, trouble.text),
            failure => panic!("{failure:?}"),
        };
        for (asked, status, word, errno, text) in [
            (Asked::Read, 404, "NoSuchBucket", Errno::NXIO, "404 NoSuchBucket: there is no such"),
            (Asked::Read, 404, "", Errno::IO, "cannot read s3://b/p/k: the store says 404"),
            (Asked::Read, 403, "AccessDenied", Errno::ACCESS, "s3:ListBucket"),
            (Asked::Create, 403, "AccessDenied", Errno::ACCESS, "s3:PutObject"),
            (Asked::Remove, 403, "AccessDenied", Errno::ACCESS, "s3:DeleteObject"),
            (Asked::Read, 403, "SignatureDoesNotMatch", Errno::ACCESS, "AWS_ACCESS_KEY_ID"),
            (Asked::Read, 401, "", Errno::ACCESS, "AWS_ACCESS_KEY_ID"),
            (Asked::Create, 409, "ConditionalRequestConflict", Errno::IO, "says 409 Conditional"),
            (swap(), 409, "ConditionalRequestConflict", Errno::IO, "says 409 Conditional"),
            (Asked::Read, 412, "", Errno::IO, "says 412"),
            (Asked::Write, 503, "SlowDown", Errno::IO, "the store says 503 SlowDown"),
            (Asked::Read, 301, "PermanentRedirect", Errno::NXIO, "AWS_REGION"),
            (Asked::Read, 416, "InvalidRange", Errno::SPIPE, "ends before"),
        ] {
            let (found, said) = trouble(asked, status, word);
            assert_eq!(found, errno.raw_os_error(), "{said}");
            assert!(said.contains(text), "{said}");
        }
        // What came too late, or broke off in a good answer.
        for status in [None, Some(200)] {
            let answer = Answer { sent: true, status, ..Answer::default() };
            let failure = answer.failure(Asked::Read, "s3://b/p/k", None);
            assert!(failure.to_string().contains("no answer in time"), "{failure}");
        }
        let failure = Answer::default().failure(Asked::Read, "s3://b/p/k", None);
        assert!(failure.to_string().contains("no credentials"), "{failure}");
        // A fetch of fresh ones that fails may succeed the next time.
        let later = Answer { was_sent: true, ..Answer::default() };
        match later.failure(Asked::Read, "s3://b/p/k", None) {
            Failure::Other(trouble) => assert!(!trouble.lasts(), "{trouble}"),
            failure => panic!("{failure:?}"),
        }
    }

    #[test]
    fn the_word_of_an_error_is_one_word() {
        assert_eq!(word(b"<Error><Code>NoSuchKey</Code><Message>x</Message></Error>"), "NoSuchKey");
        for other in ["", "<Code>", "<Code>two words</Code>", "<Code>a\nb</Code>", "no such key"] {
            assert_eq!(word(other.as_bytes()), "", "{other}");
        }
        assert_eq!(word(format!("<Code>{}</Code>", "a".repeat(99)).as_bytes()), "");
    }
}
