//! The text in which metrics are served: OpenMetrics for who asks for it, the older Prometheus text otherwise.
//!
//! The registry writes OpenMetrics. The two formats name counters and infos differently in their comment lines
//! (OpenMetrics `# TYPE x counter` for the sample `x_total`; Prometheus text `# TYPE x_total counter`), and the older
//! one has no `# UNIT` and `# EOF`, so the older one is made by rewriting comment lines. Samples are the same.

use std::fmt;

use prometheus_client::{encoding::text, registry::Registry};

/// A text format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// <https://prometheus.io/docs/specs/om/open_metrics_spec/>
    OpenMetrics,
    /// <https://prometheus.io/docs/instrumenting/exposition_formats/>, version 0.0.4.
    Prometheus,
}

impl Format {
    /// What a client asks for by its `Accept` header: OpenMetrics where it is named, as Prometheus does.
    #[must_use]
    pub fn accepted(accept: Option<&str>) -> Self {
        match accept {
            Some(accept) if accept.contains("application/openmetrics-text") => Self::OpenMetrics,
            _ => Self::Prometheus,
        }
    }

    /// Its media type.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Everything in the registry, as text.
pub fn encode(registry: &Registry, format: Format) -> Result<String, fmt::Error> {
    let mut text = String::new();
    text::encode(&mut text, registry)?;
    Ok(match format {
        Format::OpenMetrics => text,
        Format::Prometheus => prometheus(&text),
    })
}

fn prometheus(openmetrics: &str) -> String {
    let mut out = String::with_capacity(openmetrics.len() + 512);
    let mut lines = openmetrics.lines().peekable();
    while let Some(line) = lines.next() {
        let mut push = |line: &[&str]| {
            out.extend(line.iter().copied());
            out.push('\n');
        };
        if line == "# EOF" || line.starts_with("# UNIT ") {
            continue;
        }
        let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) else {
            push(&[line]);
            continue;
        };
        // The type line always follows its help line.
        let kind = lines.next_if(|line| line.starts_with("# TYPE ")).and_then(|line| line.rsplit(' ').next());
        let (suffix, kind) = match kind {
            Some("counter") => ("_total", "counter"),
            Some("info") => ("_info", "gauge"),
            Some("unknown") | None => ("", "untyped"),
            Some(kind) => ("", kind),
        };
        push(&["# HELP ", name, suffix, " ", help]);
        push(&["# TYPE ", name, suffix, " ", kind]);
    }
    out
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::{counter::Counter, gauge::Gauge, info::Info};

    use super::*;

    fn registry() -> Registry {
        let mut registry = Registry::default();
        registry.register("tries", "Tries", Counter::<u64>::default());
        registry.register("level", "Level", Gauge::<i64>::default());
        registry.register("build", "Build", Info::new([("version", "1")]));
        registry
    }

    #[test]
    fn openmetrics_is_served_to_who_asks_for_it() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        assert_eq!(Format::accepted(Some(prometheus)), Format::OpenMetrics);
        assert_eq!(Format::accepted(Some("text/plain")), Format::Prometheus);
        assert_eq!(Format::accepted(None), Format::Prometheus);
        let text = encode(&registry(), Format::OpenMetrics).unwrap();
        assert!(
            text.contains("# TYPE tries counter\ntries_total 0\n") && text.ends_with("# EOF\n"),
            "{text}"
        );
    }

    #[test]
    fn the_older_format_names_the_samples() {
        assert_eq!(
            encode(&registry(), Format::Prometheus).unwrap(),
            "# HELP tries_total Tries.\n# TYPE tries_total counter\ntries_total 0\n\
             # HELP level Level.\n# TYPE level gauge\nlevel 0\n\
             # HELP build_info Build.\n# TYPE build_info gauge\nbuild_info{version=\"1\"} 1\n"
        );
    }
}
