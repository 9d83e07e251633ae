//! A run: hosts whose processes take one chain over from each other, and a network that loses,
//! delays and repeats. All choices come from the seed.
//!
//! Invariant: an answer reaches only the process that has asked, and at most once; a paused
//! process hears and does nothing.

use super::process::{Life, Process};
use super::scene::{Scene, Stats, wrong};
use super::store::{Answered, Request, Sent};
use crate::trouble::{Kind, Trouble};

/// What can happen next.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The store carries a request out.
    Carry,
    /// A process hears an answer.
    Answer,
    /// A process and the store talk without a delay.
    Talk,
    /// An owner writes or flushes.
    Work,
    /// A host starts a process.
    Start,
    /// A process dies.
    Die,
    /// A process stands still for a while.
    Pause,
    /// A process hears of a failure after the store has carried its request out.
    Lose,
    /// A process hears of a failure; its request may be carried out later.
    Fail,
    /// The network repeats a request to create an object.
    Repeat,
    /// The network drops a request that no process waits for.
    Drop,
    /// A host starts a copy of another's process.
    Copy,
}

/// The events: how often each happens, and the factors of which the seed takes one.
const EVENTS: [(Event, u32, &[u32]); 12] = [
    (Event::Carry, 30, &[1]),
    (Event::Answer, 30, &[1]),
    (Event::Talk, 16, &[1]),
    (Event::Work, 30, &[1]),
    (Event::Start, 2, &[1, 1, 3, 5]),
    (Event::Die, 2, &[0, 1, 1, 3]),
    (Event::Pause, 2, &[0, 1, 1, 3]),
    (Event::Lose, 4, &[0, 1, 1, 3]),
    (Event::Fail, 5, &[0, 1, 1, 3, 8]),
    (Event::Repeat, 2, &[0, 1, 1, 3]),
    (Event::Drop, 2, &[0, 1, 1, 3]),
    (Event::Copy, 1, &[0, 0, 0, 0, 0, 0, 0, 1]),
];
/// Requests of a conversation without a delay, at most.
const TALK_MAX: u64 = 24;

struct Host {
    process: Option<Process>,
    /// The event until which it stands still.
    paused: u64,
}

struct World {
    scene: Scene,
    hosts: Vec<Host>,
    event: u64,
}

/// The end of a run: its counters, and its trace if asked for.
pub struct Ended {
    pub stats: Stats,
    pub result: Result<(), Trouble>,
    pub trace: Vec<String>,
}

/// Runs a seed.
pub fn run(seed: u64, with_trace: bool) -> Ended {
    let mut world = World::new(seed, with_trace);
    let mut result = crate::trouble::caught(|| world.whole());
    if let Err(trouble) = &mut result {
        trouble.step = world.event as usize;
    }
    Ended { stats: world.scene.stats, result, trace: world.scene.trace.unwrap_or_default() }
}

impl World {
    fn new(seed: u64, with_trace: bool) -> Self {
        let mut scene = Scene::new(seed, with_trace);
        let count = scene.rng.between(2, 3);
        let hosts = (0..count).map(|_| Host { process: None, paused: 0 }).collect();
        Self { scene, hosts, event: 0 }
    }

    fn whole(&mut self) -> Result<(), Trouble> {
        let weights = EVENTS.map(|(_, weight, factors)| weight * self.scene.rng.pick(factors));
        let end = self.scene.rng.between(60, 300);
        while self.event < end {
            self.event += 1;
            let (event, ..) = EVENTS[self.scene.rng.weighted(&weights)];
            self.happen(event)?;
            if let Some(key) = self.scene.store.missing_piece() {
                return wrong(Kind::Lost, format!("{key} is not there, and the root names it"));
            }
        }
        self.settle()
    }

    fn happen(&mut self, event: Event) -> Result<(), Trouble> {
        match event {
            Event::Carry => self.carry(),
            Event::Answer => self.answer(false)?,
            Event::Lose => self.answer(true)?,
            Event::Talk => self.talk()?,
            Event::Work => {
                let host = self.host();
                if let Host { process: Some(process), paused } = &mut self.hosts[host]
                    && *paused <= self.event
                {
                    process.work(&mut self.scene);
                }
            }
            Event::Start => {
                let host = self.host();
                if self.hosts[host].process.is_none() {
                    let process = Process::start(&mut self.scene)?;
                    self.hosts[host] = Host { process: Some(process), paused: 0 };
                }
            }
            Event::Die => {
                let host = self.host();
                if let Some(process) = &self.hosts[host].process {
                    self.scene.stats.deaths += 1;
                    self.scene.note(|| format!("process {} dies", process.number));
                    self.end(host);
                }
            }
            Event::Pause => {
                let (host, events) = (self.host(), self.scene.rng.between(10, 80));
                self.hosts[host].paused = self.event + events;
            }
            Event::Fail => self.fail()?,
            Event::Repeat => self.repeat(),
            Event::Drop => {
                if let Some(at) = self.some_request(|sent| !sent.awaited) {
                    let sent = self.scene.network.requests.swap_remove(at);
                    self.scene.note(|| format!("{}: {} is dropped", sent.process, sent.request));
                }
            }
            Event::Copy => self.copy(),
        }
        Ok(())
    }

    fn host(&mut self) -> usize {
        self.scene.rng.index(self.hosts.len())
    }

    /// A process ends; its requests stay.
    fn end(&mut self, host: usize) {
        if let Some(process) = self.hosts[host].process.take() {
            self.scene.network.forget(process.number);
        }
    }

    /// One of the requests for which `is_right`, if a few draws find one.
    fn some_request(&mut self, is_right: impl Fn(&Sent) -> bool) -> Option<usize> {
        let requests = &self.scene.network.requests;
        if requests.is_empty() {
            return None;
        }
        let at = self.scene.rng.index(requests.len());
        is_right(&requests[at]).then_some(at)
    }

    /// The store carries a request out. Those that no process waits for are late more often.
    fn carry(&mut self) {
        let late = self.scene.rng.chance(250);
        if let Some(at) = self.some_request(|sent| sent.awaited || late) {
            self.carry_out(at);
        }
    }

    fn carry_out(&mut self, at: usize) {
        let Sent { id, process, request, awaited } = self.scene.network.requests.swap_remove(at);
        let reply = self.scene.store.carry_out(&request);
        let late = if awaited { "" } else { " late" };
        self.scene.note(|| format!("{process}: {request} is carried out{late}: {reply}"));
        if awaited {
            self.scene.network.answers.push(Answered { id, process, reply });
        } else if !matches!(request, Request::Root | Request::Read(_) | Request::ReadPiece(_)) {
            self.scene.stats.late += 1;
        }
    }

    /// The host of a process that can hear.
    fn listening(&self, process: u32) -> Option<usize> {
        self.hosts.iter().position(|host| {
            host.paused <= self.event
                && host.process.as_ref().is_some_and(|found| found.number == process)
        })
    }

    /// A process hears an answer, or instead of it that its request failed.
    fn answer(&mut self, is_lost: bool) -> Result<(), Trouble> {
        let answers = &self.scene.network.answers;
        if answers.is_empty() {
            return Ok(());
        }
        let at = self.scene.rng.index(answers.len());
        let Some(host) = self.listening(answers[at].process) else { return Ok(()) };
        let mut answer = self.scene.network.answers.swap_remove(at);
        if is_lost {
            self.scene.stats.lost += 1;
            answer.reply = answer.reply.failed();
        }
        self.hear(host, answer)
    }

    fn hear(&mut self, host: usize, answer: Answered) -> Result<(), Trouble> {
        let Answered { id, process: number, reply } = answer;
        self.scene.note(|| format!("{number} hears: {reply}"));
        let Some(process) = &mut self.hosts[host].process else { return Ok(()) };
        if process.hear(id, reply, &mut self.scene)? == Life::GoesOn {
            return Ok(());
        }
        self.end(host);
        if self.scene.rng.chance(500) {
            self.hosts[host].process = Some(Process::start(&mut self.scene)?);
        }
        Ok(())
    }

    /// A process and the store talk without a delay.
    fn talk(&mut self) -> Result<(), Trouble> {
        let (host, count) = (self.host(), self.scene.rng.between(1, TALK_MAX));
        for _ in 0..count {
            let asked = match &self.hosts[host] {
                Host { process: Some(process), paused } if *paused <= self.event => {
                    process.oldest()
                }
                _ => None,
            };
            let Some(asked) = asked else { return Ok(()) };
            let requests = &self.scene.network.requests;
            if let Some(at) = requests.iter().position(|sent| sent.id == asked) {
                // What can come between a swap and its answer is what matters.
                if matches!(requests[at].request, Request::Swap(..)) && self.scene.rng.chance(800) {
                    return Ok(());
                }
                self.carry_out(at);
            }
            let answers = &mut self.scene.network.answers;
            let Some(at) = answers.iter().position(|answer| answer.id == asked) else {
                return Ok(());
            };
            let answer = answers.swap_remove(at);
            self.hear(host, answer)?;
        }
        Ok(())
    }

    /// A process hears that its request failed; the request stays on its way.
    fn fail(&mut self) -> Result<(), Trouble> {
        let is_swap = |sent: &Sent| sent.awaited && matches!(sent.request, Request::Swap(..));
        let swap = self.scene.network.requests.iter().position(is_swap);
        // A swap without an answer is the rarest, and the hardest to settle.
        let swap = swap.filter(|_| self.scene.rng.chance(500));
        let Some(at) = swap.or_else(|| self.some_request(|sent| sent.awaited)) else {
            return Ok(());
        };
        let sent = &self.scene.network.requests[at];
        let (id, process, reply) = (sent.id, sent.process, sent.request.failed());
        let Some(host) = self.listening(process) else { return Ok(()) };
        self.scene.network.requests[at].awaited = false;
        self.scene.note(|| format!("request {id} of {process} has no answer"));
        self.hear(host, Answered { id, process, reply })
    }

    /// A request to create an object is on its way twice.
    fn repeat(&mut self) {
        let is_create =
            |sent: &Sent| matches!(sent.request, Request::Create(..) | Request::CreatePiece(..));
        let Some(at) = self.some_request(is_create) else { return };
        let Sent { id, process, ref request, .. } = self.scene.network.requests[at];
        let request = request.clone();
        self.scene.note(|| format!("{process}: {request} is repeated"));
        self.scene.network.requests.push(Sent { id, process, request, awaited: false });
    }

    /// A host without a process starts a copy of another's.
    fn copy(&mut self) {
        let (from, to) = (self.host(), self.host());
        if self.hosts[to].process.is_none()
            && let Some(process) = &self.hosts[from].process
        {
            self.hosts[to] = Host { process: process.copy(&mut self.scene), paused: 0 };
        }
    }

    /// All processes end, and all requests; then a takeover must succeed without a delay.
    fn settle(&mut self) -> Result<(), Trouble> {
        (0..self.hosts.len()).for_each(|host| self.end(host));
        while !self.scene.network.requests.is_empty() {
            let at = self.scene.rng.index(self.scene.network.requests.len());
            if self.scene.rng.chance(500) {
                self.carry_out(at);
            } else {
                self.scene.network.requests.swap_remove(at);
            }
        }
        self.scene.note(|| String::from("all is quiet; the last takeover"));
        let mut last = Process::start(&mut self.scene)?;
        // One for each object, and some for root, fence and swap.
        let most = self.scene.store.objects() + 20;
        for _ in 0..most {
            if last.is_owner() {
                return Ok(());
            }
            self.carry_out(0);
            if let Some(Answered { id, reply, .. }) = self.scene.network.answers.pop() {
                last.hear(id, reply, &mut self.scene)?;
            }
        }
        match last.is_owner() {
            true => Ok(()),
            false => wrong(Kind::Hang, format!("no owner after {most} questions")),
        }
    }
}
