//! `[limits]` in `replica.toml`: how often somebody may ask this replica.

use palisade_api::{Limits, Rate};
use serde::{Deserialize, Serialize};

/// A rate: so many a second on average, and so many at once after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RateConfig {
    /// What comes back each second.
    pub per_second: u32,
    /// What there is at most.
    pub burst: u32,
}

impl From<Rate> for RateConfig {
    fn from(Rate { per_second, burst }: Rate) -> Self {
        Self { per_second, burst }
    }
}

impl From<RateConfig> for Rate {
    fn from(RateConfig { per_second, burst }: RateConfig) -> Self {
        Self { per_second, burst }
    }
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct LimitsConfig {
    /// Requests of one principal.
    pub principal: RateConfig,
    /// Requests of one principal that are answered at once.
    pub principal_in_flight: u32,
    /// Writes of one principal that are denied and recorded.
    pub denied: RateConfig,
    /// Wrong credentials from one address.
    pub wrong_credentials: RateConfig,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            principal: limits.principal_rate.into(),
            principal_in_flight: u32::try_from(limits.principal_in_flight_max).unwrap_or(u32::MAX),
            denied: limits.denied_rate.into(),
            wrong_credentials: limits.wrong_credentials_rate.into(),
        }
    }
}

impl LimitsConfig {
    /// The largest number that is taken: with it nothing is limited.
    pub const MAX: u32 = 1_000_000;

    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn is_usable(&self) -> bool {
        let rates = [self.principal, self.denied, self.wrong_credentials];
        let numbers = rates.iter().flat_map(|rate| [rate.per_second, rate.burst]);
        numbers.chain([self.principal_in_flight]).all(|number| (1..=Self::MAX).contains(&number))
    }
}

impl From<LimitsConfig> for Limits {
    fn from(config: LimitsConfig) -> Self {
        Self {
            principal_rate: config.principal.into(),
            principal_in_flight_max: usize::try_from(config.principal_in_flight)
                .unwrap_or(usize::MAX),
            denied_rate: config.denied.into(),
            wrong_credentials_rate: config.wrong_credentials.into(),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica_dir::read_config;

    #[test]
    fn the_limits_are_read_and_those_that_let_nobody_in_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("replica.toml");
        let read = |limits: &str| {
            let text = format!(
                "peerListen = \"127.0.0.1:1\"\napiListen = \"127.0.0.1:2\"\n{limits}\n[[members]]\n\
                 id = 1\npeerAddr = \"a:1\"\napiAddr = \"a:2\"\n"
            );
            std::fs::write(&path, text).unwrap();
            read_config(&path).map(|config| config.limits).map_err(|error| error.to_string())
        };
        assert_eq!(read("").unwrap(), LimitsConfig::default());
        let some = read("limits.principal = { perSecond = 5, burst = 9 }").unwrap();
        let api = Limits::from(some);
        assert_eq!(api.principal_rate, Rate { per_second: 5, burst: 9 });
        let default = Limits::default();
        assert_eq!(api.denied_rate, default.denied_rate, "what is not said stays");
        for wrong in [
            "limits.principal = { perSecond = 0, burst = 9 }",
            "limits.denied = { perSecond = 1, burst = 1000001 }",
            "limits.principalInFlight = 0",
            "limits.principal = { perSecond = 1 }",
            "limits.perSecond = 1",
        ] {
            let error = read(wrong).unwrap_err();
            assert!(error.contains("replica.toml"), "{error}");
        }
    }
}
