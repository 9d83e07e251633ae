//! The exporter: a listening socket, one scrape at a time, few connections.
//!
//! Invariants: a client that sends nothing, or takes no answer, gives its place to the next; one
//! survey serves all scrapes, so that a daemon that hangs has one open question from us, however
//! many scrapes come, and is waited for once.

use super::http::{self, Asked, Refusal};
use super::metric::Scrape;
use super::{PATIENCE, text};
use crate::config::Paths;
use crate::daemon::survey::Survey;
use crate::error::{Context, Result};
use crate::places::{GRACE, Place, Places};
use parking_lot::Mutex;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Most clients at once; more are sent away while none of these is silent.
const MOST_CLIENTS: usize = 8;
/// The pause when the system has no descriptor for another client.
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
    /// The address is taken, or not one of this machine.
    pub fn bind(address: SocketAddr, paths: Paths) -> Result<Self> {
        let listener = TcpListener::bind(address)
            .context(format!("cannot listen on {address}"))
            .map_err(|e| e.hint("give another address with --listen"))?;
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
        let places = Places::new(MOST_CLIENTS);
        loop {
            let Ok((stream, _)) = self.listener.accept() else {
                // Without descriptors, accept would fail again at once.
                if !places.give_up_one() {
                    thread::sleep(PAUSE);
                }
                continue;
            };
            if !room(&places) {
                http::send_away(stream);
                continue;
            }
            let place = places.take(stream);
            let survey = Arc::clone(&self.survey);
            // How a connection ends is the client's business.
            let serve = move || drop(serve(&place, &survey));
            // Without a thread the connection is closed, and the client tries again.
            let _ = thread::Builder::new().name("ztier-scrape".into()).spawn(serve);
        }
    }
}

/// Whether there is a place, after silent clients have given up theirs.
fn room(places: &Places<TcpStream>) -> bool {
    let until = Instant::now() + 2 * GRACE;
    while !places.make_room() {
        if Instant::now() >= until {
            return false;
        }
    }
    true
}

fn serve(place: &Place<TcpStream>, survey: &Mutex<Survey>) -> io::Result<()> {
    let stream = place.socket();
    let asked = http::receive(stream)?;
    place.works(0, MOST_CLIENTS);
    let text = match asked {
        Asked::Refused(why) => {
            place.answers();
            return http::refuse(stream, why);
        }
        Asked::Metrics { head } => scrape(survey).map(|text| (text, head)),
    };
    place.answers();
    match text {
        Ok((text, head)) => http::send(stream, &text, head),
        Err(_) => http::refuse(stream, Refusal::Broken),
    }
}

fn scrape(survey: &Mutex<Survey>) -> Result<String> {
    let mut survey = survey.lock();
    let begun = Instant::now();
    survey.look_around(PATIENCE)?;
    Ok(text(&Scrape { volumes: survey.known(), took: begun.elapsed() }))
}
