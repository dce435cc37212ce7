// SPDX-License-Identifier: Apache-2.0
//! `top`: the daemon's current activity. On a terminal it updates in place until `q` or Ctrl-C;
//! into a pipe it prints one page, or the requested number. It asks the daemon at the start and
//! after each interval.

mod page;
pub(super) mod sample;
mod terminal;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use clap::Args;

use crate::answers::{AdminRequest, TopAnswer};
use crate::config::{Config, parse_duration};
use crate::error::Result;

use super::exit::DONE;
use super::output::{Answer, Format, PlainOutput, print, tell};
use super::{ask, paint};

use sample::{Document, Sample};
use terminal::{Screen, Woken};

/// Number of intervals over which rates and latencies are computed.
const WINDOW: usize = 5;

/// The arguments of `top`.
#[derive(Debug, Args)]
pub(super) struct Top {
    /// Time between updates.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = interval)]
    interval: Duration,
    /// Exit after this many pages (1 into a pipe).
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    #[command(flatten)]
    pub(super) output: PlainOutput,
}

/// Minimum interval; with a shorter one, `top` itself would dominate the result.
const SHORTEST: Duration = Duration::from_millis(100);

fn interval(text: &str) -> std::result::Result<Duration, String> {
    let interval = parse_duration(text).filter(|interval| *interval >= SHORTEST);
    interval.ok_or_else(|| "expected a duration of at least 100ms, such as 2s".to_owned())
}

/// Shows pages.
///
/// # Errors
/// Fails when the daemon does not respond; on a terminal, only if it does not respond to the first
/// request. Later failures are shown there, and the request is repeated.
pub(super) fn top(config: &Config, options: &Top, format: Format) -> Result<u8> {
    let mut samples = Samples::default();
    if !format.is_page() {
        samples.take(config)?;
        std::thread::sleep(options.interval);
        samples.take(config)?;
        return tell(format, &samples.document());
    }
    if terminal::is_terminal() {
        return live(config, options, &mut samples);
    }
    samples.take(config)?;
    for _ in 0..options.count.unwrap_or(1) {
        std::thread::sleep(options.interval);
        samples.take(config)?;
        print(samples.document().page(format).as_bytes())?;
    }
    Ok(DONE)
}

/// Shows pages on the terminal; the first appears at once, with the latencies since the daemon's start.
fn live(config: &Config, options: &Top, samples: &mut Samples) -> Result<u8> {
    samples.take(config)?;
    let mut screen = Screen::enter()?;
    let mut left = options.count;
    let mut problem: Option<String> = None;
    loop {
        let page = match &problem {
            None => page::page(&samples.document(), Some(screen.size())),
            Some(problem) => page::failure(problem, screen.size()),
        };
        screen.show(&paint::for_stdout(&page, paint::trouble))?;
        left = left.map(|left| left - 1);
        if left == Some(0) {
            return Ok(DONE);
        }
        match screen.wait(options.interval)? {
            Woken::Quit => return Ok(DONE),
            Woken::Resized => left = left.map(|left| left + 1),
            Woken::Time => problem = samples.take(config).err().map(|error| error.to_string()),
        }
    }
}

impl Answer for Document {
    fn page(&self, _: Format) -> String {
        page::page(self, None)
    }
}

/// The samples of the window, oldest first.
#[derive(Default)]
struct Samples(VecDeque<Sample>);

impl Samples {
    fn take(&mut self, config: &Config) -> Result<()> {
        let answer: TopAnswer = ask(config, &AdminRequest::Top)?;
        let sample = Sample { at: Instant::now(), answer };
        if self.0.back().is_some_and(|last| last.answer.status.pid != sample.answer.status.pid) {
            self.0.clear(); // Another daemon counts from zero.
        }
        if self.0.len() > WINDOW {
            self.0.pop_front();
        }
        self.0.push_back(sample);
        Ok(())
    }

    fn document(&self) -> Document {
        let both = self.0.front().zip(self.0.back());
        both.map(|(first, last)| sample::document(first, last)).unwrap_or_default()
    }
}
