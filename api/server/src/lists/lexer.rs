//! The words of a filter.

use std::fmt;

/// A word, and the character that it begins with, from 1 on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Token {
    pub(super) at: usize,
    pub(super) is: Lexeme,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Lexeme {
    Open,
    Close,
    Comma,
    Op(Op),
    /// Something without quotes: a field, a value or a keyword. Parts that stand in quotes behind a dot are taken whole.
    Word {
        text: String,
        path: Vec<String>,
    },
    /// A value in quotes.
    Quoted(String),
}

/// How a field is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Contains,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Equal => "=",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
            Self::Contains => "~",
        })
    }
}

impl fmt::Display for Lexeme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("("),
            Self::Close => f.write_str(")"),
            Self::Comma => f.write_str(","),
            Self::Op(op) => op.fmt(f),
            Self::Word { text, .. } => f.write_str(text),
            Self::Quoted(text) => write!(f, "{text:?}"),
        }
    }
}

/// What is wrong, and at which character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) at: usize,
    pub(super) what: String,
}

pub(super) fn fault<T>(at: usize, what: impl Into<String>) -> Result<T, Fault> {
    Err(Fault { at, what: what.into() })
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || "_-.:/+@%*".contains(letter)
}

/// A text on its way to being words.
struct Lexer {
    letters: Vec<char>,
    next: usize,
}

/// Takes a filter apart.
pub(super) fn lex(text: &str) -> Result<Vec<Token>, Fault> {
    let mut lexer = Lexer { letters: text.chars().collect(), next: 0 };
    let mut tokens = vec![];
    while let Some(letter) = lexer.peek() {
        let at = lexer.next + 1;
        let is = match letter {
            letter if letter.is_whitespace() => {
                lexer.next += 1;
                continue;
            }
            '(' => lexer.one(Lexeme::Open),
            ')' => lexer.one(Lexeme::Close),
            ',' => lexer.one(Lexeme::Comma),
            '=' | '!' | '<' | '>' | '~' => lexer.op()?,
            '"' | '\'' => Lexeme::Quoted(lexer.quoted(letter)?),
            letter if is_word(letter) => lexer.word()?,
            letter => {
                return fault(at, format!("{letter:?} has no meaning here: put texts in quotes"));
            }
        };
        tokens.push(Token { at, is });
    }
    Ok(tokens)
}

impl Lexer {
    fn peek(&self) -> Option<char> {
        self.letters.get(self.next).copied()
    }

    fn one(&mut self, lexeme: Lexeme) -> Lexeme {
        self.next += 1;
        lexeme
    }

    fn op(&mut self) -> Result<Lexeme, Fault> {
        let at = self.next + 1;
        let first = self.peek();
        self.next += 1;
        let with_equal = self.peek() == Some('=');
        let op = match (first, with_equal) {
            // `==` is read as `=`: too many languages have it.
            (Some('='), _) => Op::Equal,
            (Some('!'), true) => Op::NotEqual,
            (Some('<'), true) => Op::LessOrEqual,
            (Some('>'), true) => Op::GreaterOrEqual,
            (Some('<'), false) => Op::Less,
            (Some('>'), false) => Op::Greater,
            (Some('~'), false) => Op::Contains,
            _ => return fault(at, "is no comparison; there are = != < <= > >= ~ and in (…)"),
        };
        self.next += usize::from(with_equal);
        Ok(Lexeme::Op(op))
    }

    fn quoted(&mut self, quote: char) -> Result<String, Fault> {
        let at = self.next + 1;
        let mut text = String::new();
        self.next += 1;
        while let Some(letter) = self.peek() {
            self.next += 1;
            match letter {
                letter if letter == quote => return Ok(text),
                '\\' => match self.peek() {
                    Some(escaped) if escaped == '\\' || escaped == quote => {
                        text.push(escaped);
                        self.next += 1;
                    }
                    _ => {
                        return fault(self.next, format!("\\ stands before \\ or {quote} only"));
                    }
                },
                letter => text.push(letter),
            }
        }
        fault(at, format!("the {quote} here is not closed"))
    }

    fn word(&mut self) -> Result<Lexeme, Fault> {
        let begin = self.next;
        let mut path = vec![];
        let mut part = String::new();
        while let Some(letter) = self.peek() {
            let is_after_dot = part.is_empty() && self.next > begin;
            match letter {
                '.' => {
                    path.push(std::mem::take(&mut part));
                    self.next += 1;
                }
                '"' | '\'' if is_after_dot => part = self.quoted(letter)?,
                letter if is_word(letter) => {
                    part.push(letter);
                    self.next += 1;
                }
                _ => break,
            }
        }
        path.push(part);
        let text = self.letters.iter().skip(begin).take(self.next - begin).collect();
        Ok(Lexeme::Word { text, path })
    }
}
