//! What `revgate simulate` is asked: cases from flags, from a rollout plan, or from a file.

use std::{collections::BTreeMap, fs, path::Path};

use revgate_common::layout::{MAX_REVISIONS, MAX_ROLES};
use serde::Deserialize;

use super::{Args, Mode};
use crate::{
    cli::outcome::Failure,
    rollout::{self, Limits, MAX_REPLICAS},
};

/// Ready Pods of one revision by role: its name, and the counts.
pub(super) type Counts = (String, BTreeMap<String, u32>);

/// Ready Pods of all revisions, and how they are gated.
#[derive(Debug, PartialEq)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) mode: Mode,
    pub(super) required: Vec<String>,
    pub(super) counts: BTreeMap<String, BTreeMap<String, u32>>,
}

/// A case as a file has it. Other fields (expected shares, say) are not looked at.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FileCase {
    name: Option<String>,
    mode: Option<Mode>,
    required_roles: Vec<String>,
    counts: Option<BTreeMap<String, BTreeMap<String, u32>>>,
}

/// One case, or many.
#[derive(Debug, Deserialize)]
struct File {
    #[serde(default)]
    cases: Vec<FileCase>,
    #[serde(flatten)]
    one: FileCase,
}

/// Reads `NAME:ROLE=COUNT,ROLE=COUNT`. The last colon ends the name.
pub(super) fn parse_counts(text: &str) -> Result<Counts, String> {
    let (name, counts) = text
        .rsplit_once(':')
        .filter(|(name, _)| !name.is_empty())
        .ok_or("expected NAME:ROLE=COUNT,ROLE=COUNT, as in A:prefill=2,decode=6")?;
    let mut by_role = BTreeMap::new();
    for part in counts.split(',').filter(|part| !part.is_empty()) {
        let (role, count) = part
            .split_once('=')
            .filter(|(role, _)| !role.is_empty())
            .ok_or_else(|| format!("`{part}` is not ROLE=COUNT"))?;
        let count = count.parse().map_err(|_| format!("`{count}` is not a count of Pods"))?;
        if by_role.insert(role.to_owned(), count).is_some() {
            return Err(format!("the role `{role}` is there twice"));
        }
    }
    Ok((name.to_owned(), by_role))
}

/// The cases that the arguments ask for, checked.
pub(super) fn read(args: &Args) -> Result<Vec<Case>, Failure> {
    let cases = match (&args.rollout, &args.file) {
        (Some(sizes), _) => rollout_cases(sizes, args)?,
        (None, Some(path)) => {
            let text = fs::read_to_string(path)
                .map_err(|error| Failure::failed(format!("cannot read {}: {error}", path.display())))?;
            parse_file(&text, &args.required, args.mode).map_err(|what| in_file(path, &what))?
        }
        (None, None) => vec![flag_case(args)?],
    };
    cases.iter().try_for_each(check).map_err(Failure::usage)?;
    Ok(cases)
}

fn in_file(path: &Path, what: &str) -> Failure {
    Failure::usage(format!("{}: {what}", path.display()))
}

fn flag_case(args: &Args) -> Result<Case, Failure> {
    let mut counts = BTreeMap::new();
    for (name, by_role) in &args.counts {
        if counts.insert(name.clone(), by_role.clone()).is_some() {
            return Err(Failure::usage(format!("the revision `{name}` is there twice")));
        }
    }
    let mode = args.mode.unwrap_or_default();
    Ok(Case { name: "counts".to_owned(), mode, required: required(&args.required, &[]), counts })
}

fn rollout_cases(sizes: &str, args: &Args) -> Result<Vec<Case>, Failure> {
    let (old, new) = sizes.split_once(':').unwrap_or((sizes, sizes));
    let old = rollout::parse_sizes(old).map_err(Failure::usage)?;
    let new = rollout::parse_sizes(new).map_err(Failure::usage)?;
    let roles: Vec<String> = old.iter().map(|(role, _)| (*role).to_owned()).collect();
    // By name, so that `2p10d:10d2p` is the same as `2p10d:2p10d`.
    let new_counts: Vec<u32> =
        roles.iter().filter_map(|role| new.iter().find(|(name, _)| name == role)).map(|(_, n)| *n).collect();
    if new_counts.len() != roles.len() || new.len() != roles.len() {
        return Err(Failure::usage(format!("`{sizes}`: both sizes need the same roles")));
    }
    let old_counts: Vec<u32> = old.iter().map(|(_, count)| *count).collect();
    let limits = Limits { max_unavailable: args.max_unavailable, max_surge: args.max_surge };
    let steps = rollout::plan(&old_counts, &new_counts, limits).map_err(Failure::usage)?;
    let case = |(index, step): (usize, rollout::Step)| Case {
        name: format!("step {index}"),
        mode: args.mode.unwrap_or_default(),
        required: required(&args.required, &roles),
        counts: [("old", step.old), ("new", step.new)]
            .map(|(name, counts)| (name.to_owned(), roles.iter().cloned().zip(counts).collect()))
            .into(),
    };
    Ok(steps.into_iter().enumerate().map(case).collect())
}

/// Reads a file of cases; what the flags say goes over what the file says.
pub(super) fn parse_file(text: &str, asked: &[String], mode: Option<Mode>) -> Result<Vec<Case>, String> {
    let File { mut cases, one } =
        serde_saphyr::from_str(text).map_err(|error| error.without_snippet().to_string())?;
    if one.counts.is_some() {
        cases.push(one);
    }
    if cases.is_empty() {
        return Err("neither `counts` nor `cases` is there".to_owned());
    }
    cases
        .into_iter()
        .enumerate()
        .map(|(index, case)| {
            let name = case.name.unwrap_or_else(|| format!("case {index}"));
            let counts = case.counts.ok_or_else(|| format!("`{name}` has no `counts`"))?;
            let required = required(asked, &case.required_roles);
            Ok(Case { name, mode: mode.or(case.mode).unwrap_or_default(), required, counts })
        })
        .collect()
}

/// What was asked for, else what the input says, else Prefill and Decode.
fn required(asked: &[String], said: &[String]) -> Vec<String> {
    match (asked, said) {
        ([], []) => vec!["prefill".to_owned(), "decode".to_owned()],
        ([], said) => said.to_vec(),
        (asked, _) => asked.to_vec(),
    }
}

fn check(case: &Case) -> Result<(), String> {
    let Case { name, required, counts, .. } = case;
    for (index, role) in required.iter().enumerate() {
        if role.is_empty() || required.iter().take(index).any(|earlier| earlier == role) {
            return Err(format!("{name}: the required role `{role}` is empty or there twice"));
        }
    }
    if required.len() > MAX_ROLES {
        return Err(format!("{name}: {} required roles, at most {MAX_ROLES}", required.len()));
    }
    if counts.len() > MAX_REVISIONS {
        return Err(format!("{name}: {} revisions, at most {MAX_REVISIONS}", counts.len()));
    }
    let many = counts.values().flat_map(BTreeMap::values).find(|count| **count > MAX_REPLICAS);
    many.map_or(Ok(()), |count| Err(format!("{name}: {count} Pods in one role, at most {MAX_REPLICAS}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_read_as_they_are_written() {
        let expected = BTreeMap::from([("prefill".to_owned(), 2), ("decode".to_owned(), 6)]);
        assert_eq!(parse_counts("A:prefill=2,decode=6"), Ok(("A".to_owned(), expected)));
        assert_eq!(parse_counts("a:b:"), Ok(("a:b".to_owned(), BTreeMap::new())));
        for bad in ["A", ":prefill=1", "A:prefill", "A:=1", "A:prefill=x", "A:prefill=-1", "A:d=1,d=2"] {
            assert!(parse_counts(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_file_holds_one_case_or_many_and_flags_go_over_it() {
        let one =
            parse_file("counts: {a: {decode: 3}}\nrequiredRoles: [decode]\nmode: sum\n", &[], None).unwrap();
        assert_eq!(
            (one.len(), one[0].mode, one[0].required.as_slice()),
            (1, Mode::Sum, &["decode".to_owned()][..])
        );
        let many =
            parse_file("cases: [{counts: {}}, {counts: {}}]", &["x".to_owned()], Some(Mode::Sum)).unwrap();
        assert_eq!((many.len(), many[1].name.as_str()), (2, "case 1"));
        assert_eq!((many[0].mode, many[0].required.as_slice()), (Mode::Sum, &["x".to_owned()][..]));
    }

    #[test]
    fn a_wrong_file_is_an_error() {
        for bad in ["{}", "cases: []", "cases: [{}]", "counts: 3", "counts: {a: {decode: -1}}", "mode: most"]
        {
            assert!(parse_file(bad, &[], None).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_case_beyond_the_tables_is_refused() {
        let case = |counts: &str, required: &[&str]| Case {
            name: "x".to_owned(),
            mode: Mode::Sum,
            required: required.iter().map(ToString::to_string).collect(),
            counts: [parse_counts(counts).unwrap()].into(),
        };
        assert!(check(&case("A:decode=10000", &["decode"])).is_ok());
        assert!(check(&case("A:decode=10001", &["decode"])).is_err());
        assert!(check(&case("A:", &["decode", "decode"])).is_err());
        assert!(check(&case("A:", &[""])).is_err());
    }
}
