//! The record of a run: windows of equally many finished requests, and three numbers for each of those.

use crate::window::Window;

/// One finished request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Finished {
    /// Place in the order of arrival.
    pub request: u64,
    /// From arrival to the first token [s].
    pub ttft_s: f64,
    /// From arrival to the last token [s].
    pub e2e_s: f64,
    /// From the first token to the last [s].
    pub decode_s: f64,
    /// Output tokens after the first.
    pub decode_tokens: u32,
}

impl Finished {
    /// Time per output token after the first; NaN where there is none [s].
    pub fn tpot_s(&self) -> f64 {
        self.decode_s / f64::from(self.decode_tokens)
    }
}

/// Everything kept of a run.
#[derive(Clone, Debug)]
pub struct Recorder {
    /// Windows that are full.
    pub windows: Vec<Window>,
    /// Finished requests, in the order in which they finish.
    pub finished: Vec<Finished>,
    /// The window being filled.
    pub now: Window,
    /// Requests in flight.
    pub in_flight: u64,
    /// Requests that fill a window.
    pub window_requests: u64,
}

impl Recorder {
    /// An empty record.
    pub fn new(window_requests: u64) -> Self {
        let window_requests = window_requests.max(1);
        Self { windows: Vec::new(), finished: Vec::new(), now: Window::default(), in_flight: 0, window_requests }
    }

    /// A request arrived `ago` seconds before the time that has been passed so far (less than zero: after it).
    pub fn arrived(&mut self, ago: f64) {
        self.now.in_flight_s += ago;
        self.now.arrivals += 1;
        self.in_flight += 1;
    }

    /// A request has its last token; `outside_s` it spent in flight, but not in the replica.
    pub fn finish(&mut self, finished: Finished, outside_s: f64) {
        self.in_flight -= 1;
        self.now.in_flight_s += outside_s;
        self.now.completed += 1;
        self.now.ttft_s += finished.ttft_s;
        self.now.e2e_s += finished.e2e_s;
        if finished.decode_tokens > 0 {
            self.now.tpot_s += finished.tpot_s();
            self.now.decode_s += finished.decode_s;
            self.now.decode_tokens += u64::from(finished.decode_tokens);
            self.now.with_decode += 1;
        }
        self.finished.push(finished);
    }

    /// Closes the window if it is full.
    pub fn close_if_full(&mut self) {
        if self.now.completed >= self.window_requests {
            self.close();
        }
    }

    /// Closes the window.
    pub fn close(&mut self) {
        let mut window = std::mem::take(&mut self.now);
        (window.in_flight_at_end, window.finished_at_end) = (self.in_flight, self.finished.len());
        self.windows.push(window);
    }

    /// Merges windows two by two, and fills them twice as long from now on.
    pub fn double(&mut self) {
        self.window_requests *= 2;
        let windows = std::mem::take(&mut self.windows);
        for pair in windows.chunks(2) {
            let mut window = pair[0].clone();
            pair[1..].iter().for_each(|later| window.merge(later));
            self.windows.push(window);
        }
    }
}
