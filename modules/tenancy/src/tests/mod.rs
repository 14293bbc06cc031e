mod methods;
mod quotas;
mod teardown;
mod world;
