//! From a path and a verb to a method.

use std::{collections::BTreeMap, sync::Arc};

use http::Method as HttpMethod;
use palisade_contract::{Code, Error, Result, Verb, input::nearest};

use super::request::decode_segment;
use crate::envelope::{Envelope, Route};

/// Below which path the methods are.
pub const BASE: &str = "/api/compute";

/// The HTTP method of a verb.
#[must_use]
pub fn http_method(verb: Verb) -> HttpMethod {
    match verb {
        Verb::Get => HttpMethod::GET,
        Verb::Post => HttpMethod::POST,
        Verb::Put => HttpMethod::PUT,
        Verb::Patch => HttpMethod::PATCH,
        Verb::Delete => HttpMethod::DELETE,
    }
}

fn verb_of(method: &HttpMethod) -> Option<Verb> {
    match *method {
        HttpMethod::GET | HttpMethod::HEAD => Some(Verb::Get),
        HttpMethod::POST => Some(Verb::Post),
        HttpMethod::PUT => Some(Verb::Put),
        HttpMethod::PATCH => Some(Verb::Patch),
        HttpMethod::DELETE => Some(Verb::Delete),
        _ => None,
    }
}

#[derive(Default)]
struct Place {
    methods: BTreeMap<Verb, Arc<Route>>,
}

/// All places.
pub(crate) struct Routes {
    router: matchit::Router<usize>,
    places: Vec<Place>,
    templates: Vec<String>,
}

/// What a path and verb lead to.
pub(crate) enum Found {
    /// A method and the parameters of its path.
    Method(Arc<Route>, Vec<(String, String)>),
    /// The path is one, but not for this verb; these are allowed.
    OtherVerbs(String),
}

impl Routes {
    pub(crate) fn new(envelope: &Envelope) -> Result<Self> {
        let mut routes = Self { router: matchit::Router::new(), places: vec![], templates: vec![] };
        let mut by_path: BTreeMap<String, usize> = BTreeMap::new();
        for route in envelope.routes() {
            let path = numbered(&route.binding.path);
            let place = match by_path.get(&path) {
                Some(place) => *place,
                None => {
                    let place = routes.places.len();
                    routes.router.insert(path.clone(), place).map_err(|error| {
                        Error::new(
                            Code::InvalidConfig,
                            format!("method {}: path {}: {error}", route.id, route.binding.path),
                        )
                    })?;
                    routes.places.push(Place::default());
                    routes.templates.push(format!("{BASE}{}", route.binding.path));
                    by_path.insert(path, place);
                    place
                }
            };
            if let Some(place) = routes.places.get_mut(place) {
                place.methods.insert(route.binding.verb, route.clone());
            }
        }
        Ok(routes)
    }

    /// Finds the method for a path below [`BASE`].
    pub(crate) fn find(&self, method: &HttpMethod, path: &str) -> Result<Found> {
        let missing = || self.missing(path);
        let matched = self.router.at(path).map_err(|_| missing())?;
        let place = self.places.get(*matched.value).ok_or_else(missing)?;
        let Some(route) = verb_of(method).and_then(|verb| place.methods.get(&verb)) else {
            return Ok(Found::OtherVerbs(place.allowed()));
        };
        let values = matched.params.iter().map(|(_, value)| decode_segment(value));
        let parameters = route
            .parameters()
            .zip(values)
            .map(|(name, value)| Ok((name.to_owned(), value?)))
            .collect::<Result<_>>()?;
        Ok(Found::Method(route.clone(), parameters))
    }

    fn missing(&self, path: &str) -> Error {
        let shown: String = path.chars().take(128).collect();
        let error = Error::new(Code::NotFound, format!("there is nothing at {BASE}{shown}"));
        match nearest(&format!("{BASE}{shown}"), self.templates.iter().map(String::as_str)) {
            Some(near) => error.hint(format!("the nearest path is {near}; /openapi.json has all")),
            None => error.hint("/openapi.json has all paths"),
        }
    }
}

impl Place {
    fn allowed(&self) -> String {
        let mut allowed: Vec<String> =
            self.methods.keys().map(|verb| http_method(*verb).to_string()).collect();
        if self.methods.contains_key(&Verb::Get) {
            allowed.push("HEAD".to_owned());
        }
        allowed.push("OPTIONS".to_owned());
        allowed.join(", ")
    }
}

/// A path whose parameters are named by their places, because two methods may call one differently.
fn numbered(path: &str) -> String {
    let mut count = 0;
    let segments = path.split('/').map(|segment| {
        if segment.starts_with('{') {
            count += 1;
            format!("{{p{count}}}")
        } else {
            segment.to_owned()
        }
    });
    segments.collect::<Vec<_>>().join("/")
}
