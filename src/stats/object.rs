//! What is counted about a volume in a store of objects; see [`super::declare`].

use super::declare::{Exported, Number, Row, Shown, Subject, declare};
use serde::{Deserialize, Serialize};

declare! {
/// What a volume in a store holds and has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectStats {
    Object {
        /// Where the store is.
        place: String;
        /// This owner, as the store knows it.
        owner: String;
        /// The number of this owner's time with the volume.
        #[serde(default)]
        session: String;
        /// The next owner: this one writes nothing more.
        #[serde(skip_serializing_if = "Option::is_none")]
        successor: Option<String>;
        /// The latest trouble with the store; absent while it works.
        #[serde(skip_serializing_if = "Option::is_none")]
        trouble: Option<String>;
        /// An object that was found damaged.
        #[serde(skip_serializing_if = "Option::is_none")]
        damaged_object: Option<String>;
        /// Blocks whose content is lost: a log was damaged before it had brought them here.
        lost_blocks: u64 = count "blocks lost"
            => gauge "ztier_object_lost_blocks" "Blocks whose content is lost.";
        /// Bytes of writes that are in memory, and not in the store yet.
        waiting_bytes: u64 = bytes "not in the store yet"
            => gauge "ztier_object_waiting_bytes" "Writes in memory that the store has not got yet.";
        /// Blocks that are not zeros.
        blocks: u64 = count "blocks in the store"
            => gauge blocks "ztier_object_data_bytes" "Blocks in the store that are not zeros.";
        /// Bytes of payloads that blocks have.
        live_bytes: u64 = bytes "  compressed"
            => gauge "ztier_object_live_bytes" "What the blocks in the store take, compressed.";
        /// Bytes of payloads in the store, overwritten ones included.
        stored_bytes: u64 = bytes "  with what was overwritten"
            => gauge "ztier_object_stored_bytes"
                "What payloads take in the store, overwritten ones included.";
        /// Memory of the index.
        index_bytes: u64 = bytes "index"
            => gauge "ztier_object_index_bytes" "Memory of the index.";
        /// The slot that comes next.
        next_slot: u64 = count "next slot";
        /// The first slot whose object is not in the store yet.
        durable_slot: u64 = count "first slot not in the store";
        /// Objects behind the newest checkpoint: the next owner reads each of them.
        #[serde(default)]
        walk_objects: u64 = count "objects since the checkpoint"
            => gauge "ztier_object_walk_objects" "Objects that the next owner reads one by one.";
        /// Windows that this daemon has committed.
        windows: u64 = count "windows committed"
            => counter "ztier_object_windows_total" "Windows committed to the store.";
        /// Requests that read from the store.
        #[serde(default)]
        read_requests: u64 = count "requests that read"
            => counter "ztier_object_read_requests_total" "Requests that read from the store.";
        /// The bytes that they got.
        #[serde(default)]
        read_bytes: u64 = bytes "  bytes"
            => counter "ztier_object_read_bytes_total" "Bytes read from the store.";
        /// Objects that this daemon has sent, root and signs of life and repetitions included.
        sent_objects: u64 = count "objects sent"
            => counter "ztier_object_sent_objects_total" "Objects sent, repetitions included.";
        /// Their bytes.
        sent_bytes: u64 = bytes "  bytes"
            => counter "ztier_object_sent_bytes_total" "Bytes sent, repetitions included.";
    }
}
}
