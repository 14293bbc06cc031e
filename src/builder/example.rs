//! A plugin of pets: one table, one record, two methods.

use palisade_contract::{
    Catalog, Check, Error, Method, MethodContext, Module, Resource, Result, Verb,
};
use palisade_state::{Table, Tx, View};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

const PETS: Table<String, Pet> = Table::new("plg_acme_pets", &[]);

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Pet {
    pet: String,
    food: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct One {
    pet: String,
}

impl Check for Pet {}
impl Check for One {}

fn put(_: &MethodContext, tx: &mut Tx, pet: Pet) -> Result<Pet> {
    tx.put(&PETS, &pet.pet, &pet)?;
    tx.publish("acme.pet.fed", "", format!("pet/{}", pet.pet), &json!({ "food": pet.food }));
    Ok(pet)
}

fn get(_: &MethodContext, view: &View, input: One) -> Result<Pet> {
    let found = PETS.get(view, &input.pet)?;
    Ok(found.ok_or_else(|| Error::not_found("pet", &input.pet))?.value)
}

/// Pets, and what they are fed.
pub struct AcmePets;

impl Module for AcmePets {
    fn name(&self) -> &'static str {
        "acme-pets"
    }

    fn plugin(&self) -> Option<&'static str> {
        Some("acme")
    }

    fn tables(&self) -> Vec<&'static str> {
        vec![PETS.name()]
    }

    fn catalog(&self) -> Catalog {
        Catalog {
            actions: vec!["compute:acme:read", "compute:acme:write"],
            resource_types: vec!["pet"],
        }
    }

    fn methods(&self) -> Vec<Method> {
        let on = |input: &serde_json::Value| {
            Resource::cluster("pet", input["pet"].as_str().unwrap_or_default())
        };
        vec![
            Method::mutation("pets", "put", "compute:acme:write", put)
                .rest(Verb::Put, "/pets/{pet}")
                .on(on),
            Method::query("pets", "get", "compute:acme:read", get)
                .rest(Verb::Get, "/pets/{pet}")
                .on(on),
        ]
    }
}
