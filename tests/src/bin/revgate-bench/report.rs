//! The report: Markdown tables, to read in a terminal and in docs/benchmarks.md alike.

use std::{
    fmt::{self, Write as _},
    fs,
    path::Path,
    process::Command,
};

use revgate_tests::envoy::{self, Bodies};

use crate::{
    Plan, Result, connect, extproc,
    extproc::Way,
    http::{self, Outcome, Row},
    programs::{self, CALLS},
    routers,
    server::{Job, Kind, revgate},
};

/// In docs/benchmarks.md everything after this line is written by the benchmark.
const MARK: &str = "<!-- written by the benchmark from here on -->";

/// Everything measured, as Markdown.
pub(crate) fn render(
    plan: &Plan,
    requests: &[Row],
    streams: &std::result::Result<Vec<Row>, String>,
    pickers: &std::result::Result<Vec<extproc::Row>, String>,
    connects: &std::result::Result<Vec<connect::Row>, String>,
    programs: &std::result::Result<Vec<programs::Row>, String>,
) -> Result<String> {
    let mut text = String::new();
    writeln!(text, "### Machine\n\n{}", machine()?)?;
    writeln!(
        text,
        "Each figure is the median of {} rounds of {:?}, in which all took turns.\n",
        plan.rounds, plan.time
    )?;
    for (job, title) in [(Job::Role, "HTTP"), (Job::Pair, "Pairs")] {
        for body in http::BODIES {
            let rows: Vec<&Row> = requests.iter().filter(|row| row.job == job && row.body == body).collect();
            if !rows.is_empty() {
                writeln!(text, "### {title}, {} KiB bodies\n", body >> 10)?;
                http_table(&mut text, job, &rows)?;
            }
        }
    }
    for (job, title) in [(Job::Role, "Streams"), (Job::Pair, "Streams of pairs")] {
        let rows: Vec<&Row> = streams.iter().flatten().filter(|row| row.job == job).collect();
        if !rows.is_empty() {
            writeln!(text, "### {title}\n")?;
            streams_table(&mut text, job, &rows)?;
        }
    }
    if let Err(obstacle) = streams {
        writeln!(text, "### Streams\n\nNot measured: {obstacle}.\n")?;
    }
    writeln!(text, "### Endpoint picker\n")?;
    match pickers {
        Ok(rows) => pickers_table(&mut text, rows)?,
        Err(obstacle) => writeln!(text, "Not measured: {obstacle}.")?,
    }
    writeln!(text, "\n### connect\n")?;
    match connects {
        Ok(rows) => connect_table(&mut text, plan, rows)?,
        Err(obstacle) => writeln!(text, "Not measured: {obstacle}.")?,
    }
    writeln!(text, "\n### Programs and tables\n")?;
    match programs {
        Ok(rows) => programs_table(&mut text, rows)?,
        Err(obstacle) => writeln!(text, "Not measured: {obstacle}.")?,
    }
    Ok(text)
}

fn http_table(text: &mut String, job: Job, rows: &[&Row]) -> fmt::Result {
    heading(text, job, "connections")?;
    for row in rows {
        let n = row.connections;
        line(text, n, "requests per second", row, 0, |of| Some(of.rate))?;
        line(text, n, "CPU s per 100,000 requests", row, 2, |of| of.cpu)?;
        if n == 1 {
            line(text, n, "median, µs; of a proxy what it adds", row, 1, |of| Some(of.median))?;
            line(text, n, "99th percentile, µs; of a proxy what it adds", row, 1, |of| Some(of.p99))?;
        }
        if rows.last().is_some_and(|last| last.connections == n) {
            line(text, n, "memory, MiB, the most so far", row, 0, |of| of.memory)?;
        }
    }
    writeln!(text)
}

fn streams_table(text: &mut String, job: Job, rows: &[&Row]) -> fmt::Result {
    heading(text, job, "streams")?;
    for row in rows {
        let n = row.connections;
        line(text, n, "events per second", row, 0, |of| Some(of.rate))?;
        line(text, n, "CPU s per 100,000 events", row, 2, |of| of.cpu)?;
        line(text, n, "one way, median, µs; of a proxy what it adds", row, 1, |of| Some(of.median))?;
        line(text, n, "one way, 99th percentile, µs; of a proxy what it adds", row, 1, |of| Some(of.p99))?;
        line(text, n, "memory, MiB", row, 0, |of| of.memory)?;
    }
    let (Some(few), Some(many)) = (rows.first(), rows.last()) else { return writeln!(text) };
    let median = |of: &Outcome| of.median;
    let figures = [("median", median as fn(&Outcome) -> f64), ("99th percentile", |of| of.p99)];
    for (what, figure) in figures {
        write!(text, "| {} / {} | {what} ", many.connections, few.connections)?;
        for kind in job.kinds() {
            let of = |row: &Row| row.outcome(*kind).map(figure);
            write!(text, "| {} ", number(of(many).zip(of(few)).map(|(many, few)| many / few), 2))?;
        }
        writeln!(text, "{}|", "| ".repeat(peers(job).count()))?;
    }
    writeln!(text)
}

/// The first lines of a table of proxies.
fn heading(text: &mut String, job: Job, first: &str) -> fmt::Result {
    write!(text, "| {first} | ")?;
    for kind in job.kinds() {
        write!(text, "| {kind} ")?;
    }
    for peer in peers(job) {
        write!(text, "| revgate / {peer} ")?;
    }
    let columns = "--:|".repeat(job.kinds().len() + peers(job).count());
    writeln!(text, "|\n|---|---|{columns}")
}

/// One line: a figure of everyone, and how revgate's compares.
fn line(
    text: &mut String,
    connections: usize,
    what: &str,
    row: &Row,
    digits: usize,
    figure: impl Fn(&Outcome) -> Option<f64>,
) -> fmt::Result {
    let of = |kind: Kind| row.outcome(kind).and_then(&figure);
    write!(text, "| {connections} | {what} ")?;
    for kind in row.job.kinds() {
        write!(text, "| {} ", number(of(*kind), digits))?;
    }
    for peer in peers(row.job) {
        let ratio = of(Kind::Revgate).zip(of(peer)).map(|(ours, theirs)| ours / theirs);
        write!(text, "| {} ", number(ratio, 2))?;
    }
    writeln!(text, "|")
}

fn pickers_table(text: &mut String, rows: &[extproc::Row]) -> fmt::Result {
    write!(text, "| bodies, KiB | connections | ")?;
    for way in extproc::WAYS {
        write!(text, "| {way} ")?;
    }
    writeln!(text, "| revgate / trivial | headers: revgate / trivial |")?;
    writeln!(text, "|--:|--:|---|{}", "--:|".repeat(extproc::WAYS.len() + 2))?;
    for row in rows {
        let mut line = |what: &str, digits: usize, of: &dyn Fn(&Outcome) -> Option<f64>| {
            write!(text, "| {} | {} | {what} ", row.body >> 10, row.connections)?;
            for outcome in &row.results {
                write!(text, "| {} ", number(of(outcome), digits))?;
            }
            for bodies in [Bodies::FullDuplex, Bodies::HeadersOnly] {
                let of_way = |way| {
                    let at = extproc::WAYS.iter().position(|other| *other == way)?;
                    of(row.results.get(at)?)
                };
                let both = of_way(Way::Revgate(bodies)).zip(of_way(Way::Trivial(bodies)));
                write!(text, "| {} ", number(both.map(|(ours, theirs)| ours / theirs), 2))?;
            }
            writeln!(text, "|")
        };
        line("requests per second", 0, &|of| Some(of.rate))?;
        line("CPU s of the picker (of Envoy, where it is alone) per 100,000 requests", 2, &|of| of.cpu)?;
        if row.connections == 1 {
            line("median, µs; what it adds to the direct one", 1, &|of| Some(of.median))?;
            line("99th percentile, likewise", 1, &|of| Some(of.p99))?;
        }
    }
    Ok(())
}

/// Whom revgate is compared with.
fn peers(job: Job) -> impl Iterator<Item = Kind> {
    job.kinds().iter().copied().filter(|kind| !matches!(kind, Kind::Direct | Kind::Revgate))
}

fn connect_table(text: &mut String, plan: &Plan, rows: &[connect::Row]) -> fmt::Result {
    writeln!(text, "Medians of {} connects each, in turns, nanoseconds.\n", plan.connects)?;
    writeln!(
        text,
        "| endpoints | no revgate | elsewhere | straight to an endpoint | through the VIP | VIP − straight | VIP / straight | \
         program, mean | connections/s straight | through the VIP | VIP / straight |"
    )?;
    writeln!(text, "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")?;
    for row in rows {
        writeln!(
            text,
            "| {} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {:.3} | {:.0} | {:.0} | {:.0} | {:.3} |",
            row.endpoints,
            row.before,
            row.stranger,
            row.member,
            row.vip,
            row.vip - row.member,
            row.vip / row.member,
            row.program,
            row.rate_member,
            row.rate_vip,
            row.rate_vip / row.rate_member
        )?;
    }
    Ok(())
}

fn programs_table(text: &mut String, rows: &[programs::Row]) -> fmt::Result {
    let first = rows.first().map_or(CALLS.map(|_| f64::NAN), |row| row.runs);
    writeln!(
        text,
        "Nanoseconds of a run as the kernel counts them, medians over batches, and in parentheses the ratio to the \
         first row; a change writes every table anew.\n"
    )?;
    write!(text, "| endpoints | revisions ")?;
    for (program, to, _) in CALLS {
        write!(text, "| {program}, {to} ")?;
    }
    writeln!(text, "| change, ms | maps, MiB | at most, MiB |")?;
    writeln!(text, "|--:|--:{}|--:|--:|--:|", "|--:".repeat(CALLS.len()))?;
    for row in rows {
        write!(text, "| {} | {} ", row.endpoints, row.revisions)?;
        for (run, first) in row.runs.into_iter().zip(first) {
            write!(text, "| {run:.0} ({:.2}) ", run / first)?;
        }
        writeln!(text, "| {:.1} | {} | {} |", row.change, mebibytes(row.memory), mebibytes(row.peak))?;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52 bytes")]
fn mebibytes(bytes: u64) -> String {
    format!("{:.2}", bytes as f64 / f64::from(1 << 20))
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.digits$}"))
}

/// Processor, kernel and the versions of what was measured.
fn machine() -> Result<String> {
    let cpus = fs::read_to_string("/proc/cpuinfo")?;
    let models: Vec<&str> = cpus
        .lines()
        .filter_map(|line| line.strip_prefix("model name"))
        .filter_map(|line| line.split_once(": "))
        .map(|(_, model)| model)
        .collect();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let release: String = kernel.trim().chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    let versions = [
        version(Command::new(revgate()?).arg("--version")),
        version(Command::new("/usr/sbin/nginx").arg("-v")),
        version(Command::new("/usr/sbin/haproxy").arg("-v")),
        routers::versions(),
        envoy_version(),
    ];
    Ok(format!(
        "{} × {}, Linux {release}; {}.\n",
        models.len(),
        models.first().unwrap_or(&"unknown processor"),
        versions.join(", ")
    ))
}

/// The first words of what a program says of its version.
fn version(command: &mut Command) -> String {
    let Ok(output) = command.output() else { return format!("no {}", command.get_program().display()) };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().next().unwrap_or_default().trim_start_matches("nginx version: ");
    line.split(" 20").next().unwrap_or_default().to_owned()
}

/// Envoy's, of which the words say more than the number.
fn envoy_version() -> String {
    let Some(program) = envoy::program() else { return "no Envoy".to_owned() };
    let text =
        Command::new(program).arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let (_, build) = text.split_once("version: ").unwrap_or_default();
    format!("Envoy {}", build.split('/').nth(1).unwrap_or_default())
}

/// Puts the report into a page, after its mark.
pub(crate) fn write_into(page: &Path, report: &str) -> Result<()> {
    let text = fs::read_to_string(page).map_err(|error| format!("{}: {error}", page.display()))?;
    let (kept, _) = text.split_once(MARK).ok_or_else(|| format!("{}: no line {MARK:?}", page.display()))?;
    Ok(fs::write(page, format!("{kept}{MARK}\n\n{report}"))?)
}
