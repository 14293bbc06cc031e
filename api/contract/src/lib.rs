//! What a module is: the contract, its ports and its vocabulary.
