mod joining;
mod keys;
mod life;
mod methods;
mod removal;
mod world;
