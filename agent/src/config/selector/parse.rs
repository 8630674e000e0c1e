//! The parser of the selector grammar: tokens with their place, one token of look-ahead.

use std::{collections::BTreeSet, sync::Arc};

use super::{Requirement, Selector, SelectorError, Test};
use crate::config::names;

/// Parses a whole selector.
pub(super) fn selector(text: &str) -> Result<Selector, SelectorError> {
    let mut parser = Parser { text, position: 0 };
    let mut requirements = Vec::new();
    if parser.peek().kind == Kind::End {
        return Ok(Selector { requirements });
    }
    loop {
        requirements.push(parser.requirement()?);
        let token = parser.next();
        match token.kind {
            Kind::End => return Ok(Selector { requirements }),
            Kind::Symbol(",") => {}
            _ => return Err(token.unexpected("`,` or the end")),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Word,
    Symbol(&'static str),
    End,
}

#[derive(Clone, Copy)]
struct Token<'t> {
    kind: Kind,
    text: &'t str,
    position: usize,
}

impl Token<'_> {
    fn wrong(self, message: String) -> SelectorError {
        SelectorError { position: self.position, message }
    }

    fn unexpected(self, expected: &str) -> SelectorError {
        let found = if self.kind == Kind::End { "the end".to_owned() } else { format!("`{}`", self.text) };
        self.wrong(format!("found {found}, expected {expected}"))
    }
}

struct Parser<'t> {
    text: &'t str,
    position: usize,
}

impl<'t> Parser<'t> {
    fn rest(&self) -> &'t str {
        self.text.get(self.position..).unwrap_or_default()
    }

    fn peek(&self) -> Token<'t> {
        let rest = self.rest();
        let trimmed = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let position = self.position + (rest.len() - trimmed.len());
        // The longer symbols first.
        for symbol in ["==", "!=", "=", "!", "(", ")", ",", ">", "<"] {
            if trimmed.starts_with(symbol) {
                return Token { kind: Kind::Symbol(symbol), text: symbol, position };
            }
        }
        let ends = [' ', '\t', '\r', '\n', '=', '!', '(', ')', ',', '>', '<'];
        let end = trimmed.find(ends).unwrap_or(trimmed.len());
        let text = trimmed.get(..end).unwrap_or_default();
        Token { kind: if text.is_empty() { Kind::End } else { Kind::Word }, text, position }
    }

    fn next(&mut self) -> Token<'t> {
        let token = self.peek();
        self.position = token.position + token.text.len();
        token
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        let negated = self.peek().kind == Kind::Symbol("!");
        if negated {
            let _ = self.next();
        }
        let token = self.next();
        if token.kind != Kind::Word {
            return Err(token.unexpected(if negated { "a label key" } else { "a label key or `!`" }));
        }
        if !names::is_label_key(token.text) {
            return Err(token.wrong(format!("`{}` is not {}", token.text, names::LABEL_KEY)));
        }
        let test = if negated { Test::NotExists } else { self.test()? };
        Ok(Requirement { key: Arc::from(token.text), test })
    }

    fn test(&mut self) -> Result<Test, SelectorError> {
        if matches!(self.peek().kind, Kind::End | Kind::Symbol(",")) {
            return Ok(Test::Exists);
        }
        let operator = self.next();
        Ok(match (operator.kind, operator.text) {
            (Kind::Symbol("=" | "=="), _) => Test::In(BTreeSet::from([self.value()?])),
            (Kind::Symbol("!="), _) => Test::NotIn(BTreeSet::from([self.value()?])),
            (Kind::Symbol(">"), _) => Test::Above(self.integer()?),
            (Kind::Symbol("<"), _) => Test::Below(self.integer()?),
            (Kind::Word, "in") => Test::In(self.values()?),
            (Kind::Word, "notin") => Test::NotIn(self.values()?),
            _ => {
                return Err(operator.unexpected("one of `=`, `==`, `!=`, `in`, `notin`, `>`, `<`, or `,`"));
            }
        })
    }

    /// A value, which may be empty: then a comma, a closing parenthesis or the end follows.
    fn value(&mut self) -> Result<Arc<str>, SelectorError> {
        let token = self.peek();
        match token.kind {
            Kind::End | Kind::Symbol("," | ")") => Ok(Arc::from("")),
            Kind::Symbol(_) => Err(token.unexpected("a label value")),
            Kind::Word if names::is_label_value(token.text) => Ok(Arc::from(self.next().text)),
            Kind::Word => Err(token.wrong(format!("`{}` is not {}", token.text, names::LABEL_VALUE))),
        }
    }

    fn integer(&mut self) -> Result<i64, SelectorError> {
        let token = self.peek();
        let value = self.value()?;
        value.parse().map_err(|_| token.wrong(format!("`{value}` is not an integer")))
    }

    fn values(&mut self) -> Result<BTreeSet<Arc<str>>, SelectorError> {
        let open = self.next();
        if open.kind != Kind::Symbol("(") {
            return Err(open.unexpected("`(`"));
        }
        if self.peek().kind == Kind::Symbol(")") {
            return Err(self.peek().unexpected("a label value: the list must not be empty"));
        }
        let mut values = BTreeSet::new();
        loop {
            let _ = values.insert(self.value()?);
            let token = self.next();
            match token.kind {
                Kind::Symbol(",") => {}
                Kind::Symbol(")") => return Ok(values),
                _ => return Err(token.unexpected("`,` or `)`")),
            }
        }
    }
}
