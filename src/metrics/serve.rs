//! The exporter: a listening socket, one scrape at a time, few connections.
//!
//! Invariant: one survey serves all scrapes, so that a daemon that hangs has one question of ours,
//! however many scrapes come, and is waited for once.

use super::http::{self, Asked, Refusal};
use super::metric::Scrape;
use super::{PATIENCE, text};
use crate::config::Paths;
use crate::daemon::survey::Survey;
use crate::error::{Context, Result};
use parking_lot::Mutex;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How many are served at once; more are sent away.
const MOST_CLIENTS: usize = 8;
/// How long to wait when the system has no descriptor for one more.
const PAUSE: Duration = Duration::from_millis(100);

/// A socket that serves metrics.
pub struct Server {
    listener: TcpListener,
    survey: Arc<Mutex<Survey>>,
}

impl Server {
    /// Listens on `address`.
    ///
    /// # Errors
    /// When it is taken, or not one of this machine.
    pub fn bind(address: SocketAddr, paths: Paths) -> Result<Self> {
        let listener = TcpListener::bind(address)
            .context(format!("cannot listen on {address}"))
            .map_err(|e| e.mend("give another address with --listen"))?;
        Ok(Self { listener, survey: Arc::new(Mutex::new(Survey::new(paths))) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn address(&self) -> Result<SocketAddr> {
        self.listener.local_addr().context("cannot see the address")
    }

    /// Serves for ever.
    pub fn run(&self) -> ! {
        let clients = Arc::new(AtomicUsize::new(0));
        loop {
            let Ok((mut stream, _)) = self.listener.accept() else {
                // Without descriptors it would fail again at once.
                thread::sleep(PAUSE);
                continue;
            };
            let Some(seat) = Seat::take(&clients) else {
                http::send_away(stream);
                continue;
            };
            let survey = Arc::clone(&self.survey);
            let serve = move || {
                let _seat = seat;
                // Who hangs up or is late has himself to blame.
                let _ = serve(&mut stream, &survey);
            };
            // Without a thread the connection is closed, and the client tries again.
            let _ = thread::Builder::new().name("ztier-scrape".into()).spawn(serve);
        }
    }
}

/// A place among those who are served.
struct Seat(Arc<AtomicUsize>);

impl Seat {
    fn take(clients: &Arc<AtomicUsize>) -> Option<Self> {
        let seat = Self(Arc::clone(clients));
        (seat.0.fetch_add(1, Ordering::AcqRel) < MOST_CLIENTS).then_some(seat)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn serve(stream: &mut TcpStream, survey: &Mutex<Survey>) -> io::Result<()> {
    match http::receive(stream)? {
        Asked::Refused(why) => http::refuse(stream, why),
        Asked::Metrics { head } => match scrape(survey) {
            Ok(text) => http::send(stream, &text, head),
            Err(_) => http::refuse(stream, Refusal::Broken),
        },
    }
}

fn scrape(survey: &Mutex<Survey>) -> Result<String> {
    let mut survey = survey.lock();
    let begun = Instant::now();
    survey.look_around(PATIENCE)?;
    Ok(text(&Scrape { volumes: survey.known(), took: begun.elapsed() }))
}
