//! The grammar of a filter.
//!
//! ```text
//! any   = all { "or" all }
//! all   = one { "and" one }
//! one   = "not" one | "(" any ")" | field op value | field [ "not" ] "in" "(" value { "," value } ")"
//! op    = "=" | "!=" | "<" | "<=" | ">" | ">=" | "~"
//! ```

use super::{
    DEPTH_MAX,
    filter::{Expr, Literal},
    known::Known,
    lexer::{Fault, Lexeme, Op, Token, fault},
};

struct Parser<'a> {
    tokens: std::iter::Peekable<std::vec::IntoIter<Token>>,
    /// Behind the last character.
    end: usize,
    known: &'a Known,
}

/// Reads the words of a text of so many characters.
pub(super) fn parse(tokens: Vec<Token>, letters: usize, known: &Known) -> Result<Expr, Fault> {
    let mut parser = Parser { tokens: tokens.into_iter().peekable(), end: letters + 1, known };
    let expression = parser.any(0)?;
    match parser.tokens.next() {
        None => Ok(expression),
        Some(Token { at, is }) => {
            fault(at, format!("{is} is too much here: conditions are joined by and, or"))
        }
    }
}

fn is_word(lexeme: &Lexeme, word: &str) -> bool {
    matches!(lexeme, Lexeme::Word { text, .. } if text.eq_ignore_ascii_case(word))
}

impl Parser<'_> {
    fn takes(&mut self, word: &str) -> bool {
        self.tokens.next_if(|token| is_word(&token.is, word)).is_some()
    }

    fn any(&mut self, depth: usize) -> Result<Expr, Fault> {
        let mut parts = vec![self.all(depth)?];
        while self.takes("or") {
            parts.push(self.all(depth)?);
        }
        Ok(one_of(parts, Expr::Any))
    }

    fn all(&mut self, depth: usize) -> Result<Expr, Fault> {
        let mut parts = vec![self.one(depth)?];
        while self.takes("and") {
            parts.push(self.one(depth)?);
        }
        Ok(one_of(parts, Expr::All))
    }

    /// `LIST-2`: the only place that goes deeper.
    fn one(&mut self, depth: usize) -> Result<Expr, Fault> {
        let Some(Token { at, is }) = self.tokens.next() else {
            return fault(self.end, "a condition is missing, such as name = web");
        };
        if depth > DEPTH_MAX {
            return fault(at, format!("more than {DEPTH_MAX} within each other"));
        }
        match is {
            Lexeme::Open => {
                let inner = self.any(depth + 1)?;
                match self.tokens.next() {
                    Some(Token { is: Lexeme::Close, .. }) => Ok(inner),
                    Some(Token { at, is }) => {
                        fault(at, format!("expected ) or and, or; found {is}"))
                    }
                    None => fault(self.end, format!("the ( at character {at} is not closed")),
                }
            }
            lexeme if is_word(&lexeme, "not") => Ok(Expr::Not(Box::new(self.one(depth + 1)?))),
            Lexeme::Word { text, path } => self.test(at, &text, path),
            other => fault(at, format!("expected a field, found {other}")),
        }
    }

    fn test(&mut self, at: usize, text: &str, path: Vec<String>) -> Result<Expr, Fault> {
        let field = self.known.find(&path).or_else(|what| fault(at, what))?;
        let Some(token) = self.tokens.next() else {
            return fault(self.end, format!("{text} is compared with nothing: add = VALUE"));
        };
        let is_negated = is_word(&token.is, "not");
        let (op, values) = match token.is {
            Lexeme::Op(op) => (op, vec![self.value(op)?]),
            ref lexeme if is_word(lexeme, "in") => (Op::Equal, self.values()?),
            _ if is_negated && self.takes("in") => (Op::NotEqual, self.values()?),
            other => {
                let what = format!("expected = != < <= > >= ~ or in behind {text}, found {other}");
                return fault(token.at, what);
            }
        };
        for (at, value) in &values {
            field.admits(text, op, value).or_else(|what| fault(*at, what))?;
        }
        let values = values.into_iter().map(|(_, value)| value).collect();
        Ok(Expr::Test { path, op, values })
    }

    fn value(&mut self, op: Op) -> Result<(usize, Literal), Fault> {
        match self.tokens.next() {
            Some(Token { at, is: Lexeme::Quoted(text) }) => {
                Ok((at, Literal { text, is_quoted: true }))
            }
            Some(Token { at, is: Lexeme::Word { text, .. } }) => {
                Ok((at, Literal { text, is_quoted: false }))
            }
            Some(Token { at, is }) => {
                fault(at, format!("expected a value behind {op}, found {is}"))
            }
            None => fault(self.end, format!("a value is missing behind {op}")),
        }
    }

    fn values(&mut self) -> Result<Vec<(usize, Literal)>, Fault> {
        match self.tokens.next() {
            Some(Token { is: Lexeme::Open, .. }) => {}
            Some(Token { at, is }) => {
                return fault(at, format!("expected ( behind in, found {is}"));
            }
            None => return fault(self.end, "expected ( behind in"),
        }
        let mut values = vec![self.value(Op::Equal)?];
        loop {
            match self.tokens.next() {
                Some(Token { is: Lexeme::Comma, .. }) => values.push(self.value(Op::Equal)?),
                Some(Token { is: Lexeme::Close, .. }) => return Ok(values),
                Some(Token { at, is }) => return fault(at, format!("expected , or ), found {is}")),
                None => return fault(self.end, "the list behind in is not closed by )"),
            }
        }
    }
}

fn one_of(mut parts: Vec<Expr>, join: fn(Vec<Expr>) -> Expr) -> Expr {
    match (parts.pop(), parts.is_empty()) {
        (Some(only), true) => only,
        (last, _) => {
            parts.extend(last);
            join(parts)
        }
    }
}
