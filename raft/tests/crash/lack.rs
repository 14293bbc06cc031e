//! What a test wants and cannot have here. It says so past the capture of what tests print; where it is a tool that CI
//! installs, and this is CI, the test fails instead: nobody reads what a green run says.

use std::io::Write;

/// What is missing.
#[derive(Debug)]
pub enum Lack {
    /// A tool that CI installs.
    Tool(&'static str),
    /// A right, or a device, which cannot be installed.
    Right(String),
}

impl Lack {
    /// What is said of a test that it keeps from running.
    ///
    /// # Errors
    /// It must not be missing here.
    fn judge(&self, test: &str, is_ci: bool) -> Result<String, String> {
        match self {
            Self::Tool(tool) if is_ci => Err(format!(
                "{test} needs {tool}, which CI is to install: it cannot be skipped here"
            )),
            Self::Tool(tool) => Ok(format!("skipped: {test}: no {tool}")),
            Self::Right(why) => Ok(format!("skipped: {test}: {why}")),
        }
    }

    /// Says that a test proved nothing.
    ///
    /// # Panics
    /// It must not be missing here.
    pub fn skip(&self, test: &str) {
        match self.judge(test, std::env::var_os("CI").is_some()) {
            // `eprintln` would be captured, and shown for a test that fails only.
            Ok(said) => drop(writeln!(std::io::stderr(), "{said}")),
            Err(said) => panic!("{said}"),
        }
    }
}

#[test]
fn what_ci_installs_may_be_missing_elsewhere_only() {
    let (tool, right) = (Lack::Tool("mkfs.ext4"), Lack::Right("not root".to_owned()));
    assert_eq!(tool.judge("power cuts", false).unwrap(), "skipped: power cuts: no mkfs.ext4");
    let refused = tool.judge("power cuts", true).unwrap_err();
    assert!(refused.contains("power cuts") && refused.contains("mkfs.ext4"), "{refused}");
    for is_ci in [false, true] {
        assert_eq!(right.judge("power cuts", is_ci).unwrap(), "skipped: power cuts: not root");
    }
}
