//! The envelope, REST, OpenAPI, and the agent gateway.
