//! What config.json and the files beside it say, as transformers and sentence-transformers read
//! them: published configurations, the rotation's fields in all spellings, and files that disagree.

mod files;
mod published;
mod rope;
