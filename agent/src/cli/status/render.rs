//! The status for people. Pure: a report in, text out.

use std::fmt::Write as _;

use crate::{
    cli::{
        output::Styles,
        table::{self, Cell},
    },
    observe::report::{
        Enforcement, KernelReport, NotFenceable, ReloadResult, Report, RevisionReport, RoleReport, SetReport,
    },
};

/// A report as a page of text; `wide` shows everything.
#[must_use]
pub fn render(report: &Report, wide: bool, styles: &Styles) -> String {
    let mut out = String::new();
    head(&mut out, report, styles);
    for set in &report.sets {
        out.push('\n');
        set_table(&mut out, set, wide, styles);
    }
    if wide {
        frontends(&mut out, report, styles);
        outcomes(&mut out, report, styles);
    }
    let troubles = troubles(report);
    if !troubles.is_empty() {
        out.push('\n');
    }
    let bad = styles.bad;
    for trouble in troubles {
        let _ = writeln!(out, "{bad}!{bad:#} {trouble}");
    }
    out
}

fn head(out: &mut String, report: &Report, styles: &Styles) {
    let node = report.node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
    let (style, ready) = if report.ready { (styles.good, "ready") } else { (styles.bad, "not ready") };
    let _ = writeln!(
        out,
        "revgate {}{node}, up {}: {style}{ready}{style:#}",
        report.version,
        duration(report.uptime_seconds)
    );
    let KernelReport { mode, in_step, generation, fence, .. } = &report.kernel;
    let kernel = match (mode, in_step) {
        (Enforcement::Ebpf, true) => format!("ebpf, tables in step, fence {fence}{}", lease(&report.kernel)),
        (Enforcement::Ebpf, false) => {
            format!("ebpf, tables at {generation}, fence {fence}{}", lease(&report.kernel))
        }
        (Enforcement::UserSpace, _) => "user space only".to_owned(),
    };
    let source = &report.source;
    let heard = source
        .last_event_age_seconds
        .map_or_else(|| "nothing heard yet".to_owned(), |age| format!("heard {} ago", duration(age)));
    let _ = writeln!(out, "snapshot {}; kernel {kernel}", report.generation);
    let _ = writeln!(
        out,
        "source {} {}, {heard}; configuration {}",
        source.kind, source.location, report.config.path
    );
}

/// What is left of the lease, where there is one.
fn lease(kernel: &KernelReport) -> String {
    let parts = kernel.lease_seconds.zip(kernel.lease_left_seconds);
    parts.map_or_else(String::new, |(whole, left)| {
        format!(", lease {} of {}", duration(left), duration(whole))
    })
}

fn set_table(out: &mut String, set: &SetReport, wide: bool, styles: &Styles) {
    let heading = styles.heading;
    let by = set.dominant_role.as_ref().map(|role| format!(" by {role}")).unwrap_or_default();
    let (style, paused) = if set.paused { (styles.bad, ", paused") } else { (styles.good, "") };
    let _ = writeln!(out, "{heading}{}{heading:#}: {}{by}{style}{paused}{style:#}", set.name, set.mode);
    if set.revisions.is_empty() {
        out.push_str("no Pods\n");
        return;
    }
    let mut columns =
        vec![Cell::text("REVISION"), Cell::text("SHARE"), Cell::number("%"), Cell::number("WEIGHT")];
    // Every revision of a set has the same roles, in the same order.
    let roles = set.revisions.first().map(|revision| revision.roles.as_slice()).unwrap_or_default();
    columns.extend(roles.iter().map(|role| Cell::number(role.name.to_uppercase())));
    columns.push(Cell::number("CONNECTIONS"));
    columns.push(Cell::number("IN FLIGHT"));
    if wide {
        columns.extend(["MEMBERS", "SLOT", "EPOCH"].map(Cell::number));
    }
    columns.push(Cell::text("STATE"));
    let columns = columns.into_iter().map(|cell| cell.styled(heading)).collect();
    let rows = set.revisions.iter().map(|revision| row(revision, wide, styles)).collect();
    out.push_str(&table::render(columns, rows));
}

fn row(revision: &RevisionReport, wide: bool, styles: &Styles) -> Vec<Cell> {
    let dash = || "-".to_owned();
    let mut cells = vec![
        Cell::text(&revision.name),
        Cell::text(revision.share.clone().unwrap_or_else(dash)),
        Cell::number(revision.share_decimal.map_or_else(dash, |share| format!("{:.1}", share * 100.0))),
        Cell::number(revision.weight),
    ];
    cells.extend(revision.roles.iter().map(|role| Cell::number(counts(role, wide))));
    cells.push(Cell::number(revision.connections.map_or_else(dash, |open| open.to_string())));
    cells.push(Cell::number(revision.requests_in_flight));
    if wide {
        cells.push(Cell::number(revision.members));
        cells.push(Cell::number(revision.slot));
        cells.push(Cell::number(revision.epoch));
    }
    cells.push(if revision.eligible {
        Cell::text("eligible").styled(styles.good)
    } else {
        Cell::text(format!("lacks {}", revision.lacks.join(" and "))).styled(styles.notable)
    });
    cells
}

/// Ready Pods; with their endpoints where those are not as many, or everything is shown.
fn counts(role: &RoleReport, wide: bool) -> String {
    let endpoints = role.endpoints.len();
    if !wide && u32::try_from(endpoints) == Ok(role.ready) {
        return role.ready.to_string();
    }
    format!("{} ({endpoints} ep)", role.ready)
}

fn frontends(out: &mut String, report: &Report, styles: &Styles) {
    if report.listeners.is_empty() && report.vips.is_empty() {
        return;
    }
    let columns =
        ["FRONTEND", "ADDRESS", "SET", "ROLE"].map(|name| Cell::text(name).styled(styles.heading)).into();
    let listeners = report.listeners.iter().map(|listener| {
        let kind = format!("listener {}{}", listener.name, if listener.tls { " (TLS)" } else { "" });
        [kind, listener.address.to_string(), listener.set.clone(), listener.role.clone()]
    });
    let vips = report.vips.iter().map(|vip| {
        let notes =
            [(vip.members_only, "members only"), (vip.when_agent_gone == "deny", "denies without agent")];
        let notes: Vec<&str> = notes.into_iter().filter(|(is, _)| *is).map(|(_, note)| note).collect();
        let kind = if notes.is_empty() { "VIP".to_owned() } else { format!("VIP ({})", notes.join(", ")) };
        [kind, vip.address.to_string(), vip.set.clone(), vip.role.clone()]
    });
    let rows = listeners.chain(vips).map(|cells| cells.map(Cell::text).into()).collect();
    out.push('\n');
    out.push_str(&table::render(columns, rows));
}

fn outcomes(out: &mut String, report: &Report, styles: &Styles) {
    if report.kernel.connects.is_empty() {
        return;
    }
    let columns = vec![Cell::text("KERNEL CONNECTS"), Cell::number("COUNT")];
    let columns = columns.into_iter().map(|cell| cell.styled(styles.heading)).collect();
    let rows = report.kernel.connects.iter();
    let rows = rows.map(|outcome| vec![Cell::text(&outcome.outcome), Cell::number(outcome.count)]).collect();
    out.push('\n');
    out.push_str(&table::render(columns, rows));
}

/// Most Pods that are named in a line.
const MOST_NAMED: usize = 5;

/// Everything that somebody should look at.
fn troubles(report: &Report) -> Vec<String> {
    let kernel = &report.kernel;
    let mut troubles: Vec<String> =
        report.waiting.iter().map(|reason| format!("not ready, {reason}")).collect();
    match kernel.mode {
        Enforcement::UserSpace => {
            let reason = kernel.reason.as_deref().unwrap_or("no reason given");
            troubles.push(format!("only the HTTP layer keeps revisions apart: {reason}"));
        }
        Enforcement::Ebpf if !kernel.in_step => troubles.push(format!(
            "kernel tables are at generation {}, the snapshot is {}; look again, and at the log if it stays so",
            kernel.generation, report.generation
        )),
        Enforcement::Ebpf => {}
    }
    troubles.extend(report.local_pods.not_fenceable.iter().map(|NotFenceable { pod, runtime_class }| {
        format!("Pod {pod} ({runtime_class}) cannot be fenced: its connects pass by this kernel's hooks")
    }));
    let unknown = &report.local_pods.unknown;
    if !unknown.is_empty() {
        let named = unknown.get(..MOST_NAMED).unwrap_or(unknown).join(", ");
        let more = if unknown.len() > MOST_NAMED { ", .." } else { "" };
        troubles.push(format!(
            "{} Ready on this node without a cgroup that is known, steered and fenced like strangers: {named}{more}",
            unknown.len()
        ));
    }
    // Before the first publication nobody holds the lease, and the tables of the agent before are in force.
    let published = report.synced && !kernel.takeover_pending;
    let may_deny = report.vips.iter().any(|vip| vip.when_agent_gone == "deny");
    if published && may_deny && kernel.lease_left_seconds == Some(0.0) {
        troubles.push("the lease has run out: VIPs with whenAgentGone: deny refuse every connect".to_owned());
    }
    if kernel.takeover_pending {
        troubles.push(
            "programs of an agent before are still attached, on its tables, until this one has published"
                .to_owned(),
        );
    }
    troubles.extend(kernel.error.iter().map(|error| format!("kernel: {error}")));
    troubles.extend(report.source.last_error.iter().map(|error| {
        format!("source {}: {error}; the last good state stays in force", report.source.location)
    }));
    for watch in report.source.watches.iter().filter(|watch| watch.stale) {
        let age = watch.last_event_age_seconds.map(duration).map_or_else(
            || "nothing was heard of it yet".to_owned(),
            |age| format!("nothing was heard of it for {age}"),
        );
        let of = [&watch.resource, &watch.namespace, &watch.name].map(String::as_str);
        let of: Vec<&str> = of.into_iter().filter(|part| !part.is_empty()).collect();
        troubles.push(format!("the view of {} is stale: {age}", of.join(" ")));
    }
    if report.synced {
        troubles.extend(report.missing_vips.iter().map(|vip| {
            format!("{}'s {} has no VIP at the Service {}: {}", vip.set, vip.role, vip.service, vip.reason)
        }));
    }
    if report.config.last_reload == ReloadResult::Failed {
        let error = report.config.error.as_deref().unwrap_or_default();
        troubles
            .push(format!("the changed configuration was refused, the one before is in force:\n  {error}"));
    }
    troubles
}

/// A duration in its one or two largest units.
fn duration(seconds: f64) -> String {
    let whole = std::time::Duration::try_from_secs_f64(seconds).unwrap_or_default().as_secs();
    let (days, hours, minutes, seconds) = (whole / 86_400, whole / 3_600 % 24, whole / 60 % 60, whole % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{seconds}s"),
        (0, _, _) => format!("{hours}h{minutes}m"),
        _ => format!("{days}d{hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::{
        KernelReading,
        testing::{self, SetBuilder, reading},
    };

    fn rollout() -> Report {
        let snapshot = testing::snapshot(7, vec![SetBuilder::rollout().build()]);
        let mut kernel = reading(7);
        kernel.connections = vec![testing::connections(0, 0, 1, 10, 1)];
        testing::report(&snapshot, &kernel)
    }

    #[test]
    fn a_rollout_on_a_page() {
        let expected = "\
revgate VERSION on node-a, up 1m15s: ready
snapshot 7; kernel ebpf, tables in step, fence enforce, lease 21s of 30s
source file /etc/revgate/pods.yaml, heard 2s ago; configuration /etc/revgate/config.yaml

chat: max-role by decode
REVISION  SHARE     %  WEIGHT  PREFILL  DECODE  CONNECTIONS  IN FLIGHT  STATE
5c9d7a1b  3/5    60.0       6        2       6            9          0  eligible
7f00aa12  2/5    40.0       4        1       4            0          0  eligible
9e11bb23  0       0.0       0        0       3            0          0  lacks a Ready prefill Pod
";
        let expected = expected.replace("VERSION", env!("CARGO_PKG_VERSION"));
        assert_eq!(render(&rollout(), false, &Styles::default()), expected);
    }

    #[test]
    fn wide_adds_endpoints_slots_frontends_and_outcomes() {
        let text = render(&rollout(), true, &Styles::default());
        let (_, tables) = text.split_once("chat: ").unwrap();
        let expected = "\
max-role by decode
REVISION  SHARE     %  WEIGHT   PREFILL    DECODE  CONNECTIONS  IN FLIGHT  MEMBERS  SLOT  EPOCH  STATE
5c9d7a1b  3/5    60.0       6  2 (2 ep)  6 (6 ep)            9          0        8     0      1  eligible
7f00aa12  2/5    40.0       4  1 (1 ep)  4 (4 ep)            0          0        5     1      1  eligible
9e11bb23  0       0.0       0  0 (0 ep)  3 (3 ep)            0          0        3     2      1  lacks a Ready prefill Pod

FRONTEND         ADDRESS         SET   ROLE
listener decode  127.0.0.1:8081  chat  decode
VIP              127.0.90.1:80   chat  decode

KERNEL CONNECTS  COUNT
steered_pin         41
denied_fence         2
";
        assert_eq!(tables, expected);
    }

    #[test]
    fn troubles_are_at_the_end() {
        let snapshot = testing::snapshot(7, vec![SetBuilder::new("chat").revision("a", [0, 0]).build()]);
        let mut report = testing::report(&snapshot, &KernelReading::user_space("CAP_BPF is missing"));
        report.waiting = vec!["waiting for: first Pod list".to_owned()];
        report.ready = false;
        report.source.last_error = Some("pods.yaml:3:1: no name".to_owned());
        let (pod, runtime_class) = ("llm/decode-3".to_owned(), "kata-qemu".to_owned());
        report.local_pods.not_fenceable = vec![NotFenceable { pod, runtime_class }];
        report.local_pods.unknown = (0..9).map(|n| format!("llm/decode-{n}")).collect();
        report.config.last_reload = ReloadResult::Failed;
        report.config.error = Some("config.yaml:1:1: unknown field".to_owned());
        let text = render(&report, false, &Styles::default());
        assert!(text.contains(": not ready\n") && text.contains("chat: max-role, paused\n"), "{text}");
        let (_, troubles) = text.split_once("Pod and a Ready decode Pod\n\n").unwrap();
        assert_eq!(
            troubles,
            "! not ready, waiting for: first Pod list\n\
             ! only the HTTP layer keeps revisions apart: CAP_BPF is missing\n\
             ! Pod llm/decode-3 (kata-qemu) cannot be fenced: its connects pass by this kernel's hooks\n\
             ! 9 Ready on this node without a cgroup that is known, steered and fenced like strangers: \
             llm/decode-0, llm/decode-1, llm/decode-2, llm/decode-3, llm/decode-4, ..\n\
             ! source /etc/revgate/pods.yaml: pods.yaml:3:1: no name; the last good state stays in force\n\
             ! the changed configuration was refused, the one before is in force:\n  config.yaml:1:1: unknown field\n"
        );
    }

    #[test]
    fn tables_behind_the_snapshot_are_a_trouble() {
        let snapshot = testing::snapshot(7, vec![SetBuilder::rollout().build()]);
        let text = render(&testing::report(&snapshot, &reading(6)), false, &Styles::default());
        assert!(
            text.contains("kernel ebpf, tables at 6") && text.contains("! kernel tables are at generation 6"),
            "{text}"
        );
    }

    #[test]
    fn a_lease_that_ran_out_and_a_takeover_that_waits_are_troubles() {
        let snapshot = testing::snapshot(7, vec![SetBuilder::rollout().build()]);
        let mut report = testing::report(&snapshot, &reading(7));
        assert!(!render(&report, false, &Styles::default()).contains('!'));
        report.kernel.lease_left_seconds = Some(0.0);
        let gone = "! the lease has run out: VIPs with whenAgentGone: deny refuse";
        assert!(!render(&report, false, &Styles::default()).contains(gone), "no VIP denies");
        report.vips[0].when_agent_gone = "deny".to_owned();
        assert!(render(&report, false, &Styles::default()).contains(gone));
        report.kernel.takeover_pending = true;
        let text = render(&report, true, &Styles::default());
        assert!(!text.contains(gone), "the tables before are in force: {text}");
        for part in [
            "lease 0s of 30s",
            "VIP (denies without agent)",
            "! programs of an agent before are still attached",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn durations_have_two_units_at_most() {
        let shown = [0.4, 59.9, 60.0, 3_725.0, 90_000.0, f64::NAN].map(duration);
        assert_eq!(shown, ["0s", "59s", "1m0s", "1h2m", "1d1h", "0s"]);
    }
}
