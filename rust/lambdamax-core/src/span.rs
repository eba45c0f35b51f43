//! What a layer's attention sees of a sequence, and sums of it over prompts and lives (docs/model.md sections 3 and 4).

use crate::error::{CoreError, positive};

/// Lives shorter than this many steps are taken at one position: the difference of sums would lose its digits.
const SHORTEST_LIFE: f64 = 1e-6;

/// All tokens, the last few, or those since the last boundary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SpanKind {
    /// Every earlier token.
    Full,
    /// The last `tokens`.
    Sliding,
    /// The current chunk of `tokens`.
    Chunked,
}

/// The tokens that a query attends to, and that a cache keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    kind: SpanKind,
    tokens: f64,
}

impl Span {
    /// Everything.
    pub const FULL: Self = Self { kind: SpanKind::Full, tokens: f64::INFINITY };

    /// A span of `tokens`.
    pub const fn new(kind: SpanKind, tokens: f64) -> Self {
        Self { kind, tokens }
    }

    /// Reads the code of a kind (0 full, 1 sliding, 2 chunked) and its tokens.
    pub fn read(code: f64, tokens: f64) -> Result<Self, CoreError> {
        let kind = match code {
            0.0 => return Ok(Self::FULL),
            1.0 => SpanKind::Sliding,
            2.0 => SpanKind::Chunked,
            value => return Err(CoreError::Fact { name: "span_kind", value, allowed: "0, 1 or 2" }),
        };
        Ok(Self { kind, tokens: positive("span_tokens", tokens)? })
    }

    /// Whether it never forgets.
    pub fn is_full(&self) -> bool {
        self.kind == SpanKind::Full
    }

    /// The most tokens it holds of `context`.
    pub fn held(&self, context: f64) -> f64 {
        context.min(self.tokens)
    }

    /// Q(t): query–key pairs of the first `tokens` of a prompt.
    pub fn pairs(&self, tokens: f64) -> f64 {
        self.sum(tokens, 0.0)
    }

    /// G(t): tokens attended to by positions 1 to `tokens`, together.
    fn attended(&self, tokens: f64) -> f64 {
        self.sum(tokens, 1.0)
    }

    /// Σ over positions up to t of what each sees; `own` 1 counts whole positions, 0 is the continuum.
    fn sum(&self, t: f64, own: f64) -> f64 {
        let triangle = |x: f64| 0.5 * x * (x + own);
        match self.kind {
            SpanKind::Full => triangle(t),
            SpanKind::Sliding if t <= self.tokens => triangle(t),
            SpanKind::Sliding => triangle(self.tokens) + (t - self.tokens) * self.tokens,
            SpanKind::Chunked => {
                let chunks = (t / self.tokens).floor();
                chunks * triangle(self.tokens) + triangle(t - chunks * self.tokens)
            }
        }
    }

    /// M(i, s): mean tokens attended to over a life of `steps` decode steps after a prompt.
    pub fn mean_attended(&self, prompt: f64, steps: f64) -> f64 {
        if self.is_full() {
            return prompt + 0.5 * (steps + 1.0);
        }
        if self.kind == SpanKind::Sliding {
            return self.mean_sliding(prompt, steps);
        }
        if steps < SHORTEST_LIFE {
            return self.seen_at(prompt + 0.5 * (steps + 1.0));
        }
        (self.attended(prompt + steps) - self.attended(prompt)) / steps
    }

    /// The sliding case without differences of large sums.
    fn mean_sliding(&self, prompt: f64, steps: f64) -> f64 {
        let growing = self.tokens - prompt;
        let middle = prompt + 0.5 * (steps + 1.0);
        if steps <= 0.0 {
            return self.held(middle);
        }
        if growing >= steps {
            return middle;
        }
        if growing <= 0.0 {
            return self.tokens;
        }
        (growing * (prompt + 0.5 * (growing + 1.0)) + (steps - growing) * self.tokens) / steps
    }

    /// What one position attends to.
    fn seen_at(&self, position: f64) -> f64 {
        match self.kind {
            SpanKind::Full => position,
            SpanKind::Sliding => self.held(position),
            SpanKind::Chunked => position - ((position / self.tokens).ceil() - 1.0).max(0.0) * self.tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn brute(span: Span, prompt: u32, outputs: u32) -> f64 {
        let life = prompt + 1..prompt + outputs;
        let steps = f64::from(outputs - 1);
        life.map(|position| span.seen_at(f64::from(position))).sum::<f64>() / steps
    }

    #[test]
    fn the_mean_over_a_life_is_the_sum_over_its_steps() {
        for span in [Span::FULL, Span::new(SpanKind::Sliding, 100.0), Span::new(SpanKind::Chunked, 64.0)] {
            for (prompt, outputs) in [(10, 5), (90, 40), (150, 7), (63, 2), (64, 200), (99, 3)] {
                let mean = span.mean_attended(f64::from(prompt), f64::from(outputs - 1));
                let exact = brute(span, prompt, outputs);
                assert!((mean / exact - 1.0).abs() < 1e-12, "{span:?} {prompt} {outputs}: {mean} {exact}");
            }
        }
    }

    #[test]
    fn a_window_that_nothing_reaches_is_no_window() {
        let wide = Span::new(SpanKind::Sliding, 1e9);
        assert_eq!(wide.mean_attended(1000.0, 99.0), Span::FULL.mean_attended(1000.0, 99.0));
        assert_eq!(wide.pairs(1000.0), Span::FULL.pairs(1000.0));
    }
}
