//! The client of a bucket, as the environment describes it, and the threads that its requests need.
//!
//! Invariants: without TLS it reaches only this machine, unless `AWS_ALLOW_HTTP` says otherwise; it
//! sends no request a second time; no error repeats a value of the environment.

use super::answer::Watching;
use crate::error::{Context, Error, Result};
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::{ClientConfigKey, RetryConfig};
use std::net::IpAddr;
use std::sync::OnceLock;
use tokio::runtime::{Builder, Runtime};

/// How long a connection may take to come up.
const CONNECT: &str = "5s";
/// How long a request may take.
const WHOLE: &str = "60s";
/// All hosts, for a list of those that no proxy is for.
const NO_PROXY: &str = "*,0.0.0.0/0,::/0";
/// Threads that look names up; a service of names that hangs occupies no more.
const BLOCKING: usize = 4;

/// The threads of all stores of this process: one beside those that ask.
///
/// # Errors
/// They can't be started.
pub fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).max_blocking_threads(BLOCKING).thread_name("ztier-s3");
    let made = builder.enable_io().enable_time().build();
    let made = made.context("cannot start the threads of a store")?;
    Ok(RUNTIME.get_or_init(|| made))
}

/// How a client reaches its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Encrypted.
    Tls,
    /// Not encrypted, on this machine.
    Loopback,
    /// Not encrypted, over a network.
    Open,
}

/// The way to an endpoint; `None`: it is no URL of one.
fn way(endpoint: &str) -> Option<Way> {
    let (scheme, rest) = endpoint.split_once("://")?;
    let host = rest.split(['/', '?', '#']).next().filter(|host| !host.is_empty())?;
    if host.contains('@') || host.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return None;
    }
    match scheme {
        "https" => return Some(Way::Tls),
        "http" => {}
        _ => return None,
    }
    let name = match host.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let is_here = name == "localhost" || name.parse().is_ok_and(|at: IpAddr| at.is_loopback());
    Some(if is_here { Way::Loopback } else { Way::Open })
}

/// The client of `bucket`.
///
/// # Errors
/// The environment describes none, or this machine trusts no authority for TLS.
pub fn make(bucket: &str) -> Result<AmazonS3> {
    let builder = AmazonS3Builder::from_env();
    let option = |key| AmazonS3ConfigKey::Client(key);
    let given = |key: AmazonS3ConfigKey| builder.get_config_value(&key).filter(|v| !v.is_empty());
    let endpoint = given(AmazonS3ConfigKey::S3Endpoint).or(given(AmazonS3ConfigKey::Endpoint));
    let way = endpoint.as_ref().map_or(Some(Way::Tls), |endpoint| way(endpoint));
    let Some(way) = way else {
        return Err(Error::usage("AWS_ENDPOINT_URL is no endpoint")
            .hint("write it like https://host:port, without a name or password"));
    };
    if way == Way::Open && given(option(ClientConfigKey::AllowHttp)).as_deref() != Some("true") {
        let text = "AWS_ENDPOINT_URL is without TLS, and not on this machine";
        return Err(Error::usage(text)
            .hint("use https://, or set AWS_ALLOW_HTTP=true for a network that you trust"));
    }
    let has = |key| given(key).is_some();
    if has(AmazonS3ConfigKey::AccessKeyId) != has(AmazonS3ConfigKey::SecretAccessKey) {
        return Err(Error::usage("of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY one is missing")
            .hint("set both, or none to use the machine's role"));
    }
    // For TLS without a library of its own; fails only where it was chosen before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (agent, plain) = (concat!("ztier/", env!("CARGO_PKG_VERSION")), way != Way::Tls);
    let asks_proxy = has(option(ClientConfigKey::ProxyUrl));
    let builder = match endpoint.filter(|_| way == Way::Loopback && !asks_proxy) {
        // What stays on this machine goes through no proxy of the system (HTTP_PROXY): naming one
        // that nothing goes through leaves those out.
        Some(endpoint) => builder
            .with_config(option(ClientConfigKey::ProxyUrl), endpoint)
            .with_config(option(ClientConfigKey::ProxyExcludes), NO_PROXY),
        None => builder,
    };
    builder
        .with_bucket_name(bucket)
        .with_config(option(ClientConfigKey::AllowHttp), plain.to_string())
        .with_config(option(ClientConfigKey::ConnectTimeout), CONNECT)
        .with_config(option(ClientConfigKey::Timeout), WHOLE)
        .with_config(option(ClientConfigKey::UserAgent), agent)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        // Objects have check words; TLS, or one machine, keeps others from changing them.
        .with_unsigned_payload(way != Way::Open)
        .with_disable_bulk_delete(true)
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
        .with_http_connector(Watching)
        .build()
        // The library's text may repeat what the environment says.
        .map_err(|_| {
            Error::failure(format!("cannot make a client for the bucket {bucket}"))
                .hint("look at the variables AWS_… and that ca-certificates is installed")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_goes_without_tls() {
        for (endpoint, expected) in [
            ("https://s3.example.org", Some(Way::Tls)),
            ("https://10.1.2.3:9000/", Some(Way::Tls)),
            ("http://127.0.0.1:9000", Some(Way::Loopback)),
            ("http://127.9.9.9/x", Some(Way::Loopback)),
            ("http://[::1]:9000", Some(Way::Loopback)),
            ("http://localhost", Some(Way::Loopback)),
            ("http://localhost.example.org", Some(Way::Open)),
            ("http://127.0.0.1.example.org:80", Some(Way::Open)),
            ("http://10.1.2.3:9000", Some(Way::Open)),
            ("http://[fe80::1]", Some(Way::Open)),
            ("http://127.0.0.1@example.org", None),
            ("http://key:secret@127.0.0.1", None),
            ("ftp://127.0.0.1", None),
            ("127.0.0.1:9000", None),
            ("http://", None),
        ] {
            assert_eq!(way(endpoint), expected, "{endpoint}");
        }
    }
}
