mod matrix;
mod tokens;
mod world;
