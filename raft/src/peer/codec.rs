//! Protobuf messages with small buffers. The default ones take 8 KiB for each side of each call, and most messages
//! here have a few hundred bytes.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{BufferSettings, Codec, Decoder, Encoder};
use tonic_prost::ProstCodec;

const BUFFER_BYTES: usize = 512;
/// From here on, what is encoded is sent before more is.
const YIELD_BYTES: usize = 32 * 1024;

fn buffers() -> BufferSettings {
    BufferSettings::new(BUFFER_BYTES, YIELD_BYTES)
}

/// Encodes `T` and decodes `U`.
pub struct SmallCodec<T, U>(PhantomData<fn() -> (T, U)>);

impl<T, U> Default for SmallCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for SmallCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
    ProstCodec<T, U>: Codec<Encode = T, Decode = U>,
    <ProstCodec<T, U> as Codec>::Encoder: Encoder<Item = T, Error = tonic::Status>,
    <ProstCodec<T, U> as Codec>::Decoder: Decoder<Item = U, Error = tonic::Status>,
{
    type Encode = T;
    type Decode = U;
    type Encoder = <ProstCodec<T, U> as Codec>::Encoder;
    type Decoder = <ProstCodec<T, U> as Codec>::Decoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(buffers())
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(buffers())
    }
}
