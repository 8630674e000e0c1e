//! What is wrong with a file of configuration, said so that it can be mended without reading anything else: the
//! place, the path, the fault, what is allowed there, and the name that was probably meant. All faults of a file are
//! collected; nobody mends a file one error at a time.

use std::{
    cell::RefCell,
    fmt, io,
    path::{Path, PathBuf},
};

/// More than this are not kept: a file with so many is the wrong file.
const MAX_PROBLEMS: usize = 100;

/// Where in a text, both counted from 1; columns are characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

/// One thing that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Where.
    pub at: Position,
    /// The path of the field, such as `plugins[0].parameters.revisionGating.mode`; empty for a whole document.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What is allowed there.
    pub allowed: Option<String>,
    /// The name that was probably meant.
    pub suggestion: Option<String>,
}

/// Why a file gives no configuration. The display is the whole message, one or more lines for each fault.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot read the configuration: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file says something that is not a configuration.
    #[error("{}", Report { file, problems })]
    Invalid {
        /// The file.
        file: PathBuf,
        /// Everything that is wrong with it, in the order of the text.
        problems: Vec<Problem>,
    },
}

struct Report<'a> {
    file: &'a Path,
    problems: &'a [Problem],
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{}:{}:{}: ", self.file.display(), problem.at.line, problem.at.column)?;
            if !problem.path.is_empty() {
                write!(f, "{}: ", problem.path)?;
            }
            write!(f, "{}", problem.message)?;
            if let Some(allowed) = &problem.allowed {
                write!(f, "\n    allowed: {allowed}")?;
            }
            if let Some(suggestion) = &problem.suggestion {
                write!(f, "\n    did you mean `{suggestion}`?")?;
            }
        }
        if self.problems.len() >= MAX_PROBLEMS {
            write!(f, "\nand more: only the first {MAX_PROBLEMS} are shown")?;
        }
        Ok(())
    }
}

/// The faults found so far. Shared by all readers of one file, hence the cell.
#[derive(Debug, Default)]
pub(super) struct Problems(RefCell<Vec<Problem>>);

impl Problems {
    /// Adds one, while there are not too many.
    pub(super) fn add(&self, mut problem: Problem) {
        let mut list = self.0.borrow_mut();
        if list.len() < MAX_PROBLEMS {
            // Both quote the file, which may hold anything, and end in terminals and logs.
            problem.path = printable(&problem.path);
            problem.message = printable(&problem.message);
            list.push(problem);
        }
    }

    /// Whether more are not kept, so that it is not worth looking for them.
    pub(super) fn is_full(&self) -> bool {
        self.0.borrow().len() >= MAX_PROBLEMS
    }

    /// Adds one about no field in particular.
    pub(super) fn at(&self, at: Position, message: impl Into<String>) {
        self.add(Problem {
            at,
            path: String::new(),
            message: message.into(),
            allowed: None,
            suggestion: None,
        });
    }

    /// All of them, in the order of the text.
    pub(super) fn into_sorted(self) -> Vec<Problem> {
        let mut list = self.0.into_inner();
        list.sort_by_key(|problem| problem.at);
        list
    }
}

/// The text on one line, without control characters, of bounded length.
fn printable(text: &str) -> String {
    const LONGEST: usize = 400;
    let mut line = String::new();
    for c in text.chars() {
        if line.len() >= LONGEST {
            line.push_str("...");
            break;
        }
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}

/// The one of `names` that `found` was probably meant to be. Case, `-` and `_` do not count as differences.
pub(super) fn closest<'n>(found: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    // Longer text is no misspelt name, and the distance costs the product of both lengths.
    const LONGEST: usize = 64;
    if found.len() > LONGEST {
        return None;
    }
    let plain = |name: &str| name.replace(['-', '_'], "").to_ascii_lowercase();
    let wanted = plain(found);
    names
        .into_iter()
        .filter(|name| *name != found)
        .map(|name| (strsim::osa_distance(&wanted, &plain(name)), name))
        .filter(|(distance, name)| *distance <= 1 + name.len() / 5 && *distance < name.len())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_name_is_suggested_and_a_far_one_is_not() {
        let names = ["max-role", "sum", "disabled"];
        for (found, expected) in [
            ("maxrole", Some("max-role")),
            ("Max_Role", Some("max-role")),
            ("disable", Some("disabled")),
            ("dsiabled", Some("disabled")),
            ("summ", Some("sum")),
            ("some", None),
            ("weighted", None),
            ("", None),
        ] {
            let got = closest(found, names);
            assert_eq!(got, expected, "{found}");
        }
        assert_eq!(closest(&"x".repeat(1 << 20), names), None);
    }

    #[test]
    fn what_a_file_says_cannot_break_a_line_or_flood_a_log() {
        let problems = Problems::default();
        problems.at(Position::default(), "a\nb\u{1b}[31m");
        problems.at(Position::default(), "x".repeat(1 << 20));
        let list = problems.into_sorted();
        assert_eq!(list[0].message, "a\\nb\\u{1b}[31m");
        assert!(list[1].message.len() < 500);
    }

    #[test]
    fn the_message_holds_file_line_path_allowed_values_and_suggestion() {
        let error = ConfigError::Invalid {
            file: "a.yaml".into(),
            problems: vec![Problem {
                at: Position { line: 3, column: 7 },
                path: "kernel.mode".into(),
                message: "unknown mode `atuo`".into(),
                allowed: Some("auto, required, off".into()),
                suggestion: Some("auto".into()),
            }],
        };
        assert_eq!(
            error.to_string(),
            "a.yaml:3:7: kernel.mode: unknown mode `atuo`\n    allowed: auto, required, off\n    did you mean \
             `auto`?"
        );
    }
}
