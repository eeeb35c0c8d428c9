//! Prompts with soft tokens: M-RoPE positions, where a prompt may be cut, and the inputs of a chunk.
//! Sessions run what this prepares.

use super::Session;
use crate::arch::vision::{IMAGE_EMBEDDINGS, ImageMask};
use crate::exec::soft_tokens::SoftTokenCache;
use crate::exec::step::rows_bytes;
use crate::gpu::{Backend, Command};
use crate::ir::{Embed, Op, SoftTokens};
use crate::plan::Slot;
use crate::{Error, Result};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// A chunk of a prompt in the step's inputs.
pub(in crate::exec) struct StagedChunk {
    /// Ids as the step reads them.
    pub ids: Vec<u32>,
    /// Whether some stand for soft tokens, which a decode step does not accept.
    pub has_soft_tokens: bool,
}

impl Session {
    /// Sets the cache whose soft tokens prompts may reference, by ids past the vocabulary.
    pub fn set_soft_token_cache(&mut self, cache: Rc<RefCell<SoftTokenCache>>) {
        self.soft_token_cache = cache;
    }

    /// The soft tokens that prompts of the session may reference.
    pub fn soft_token_cache(&self) -> &Rc<RefCell<SoftTokenCache>> {
        &self.soft_token_cache
    }

    /// Whether prompts may reference soft tokens.
    pub fn accepts_soft_tokens(&self) -> bool {
        self.model
            .graph()
            .inputs
            .iter()
            .any(|i| i.name == IMAGE_EMBEDDINGS)
    }

    /// Rejects ids that are neither in the vocabulary nor cached soft tokens.
    pub(in crate::exec) fn check_soft_tokens(&self, ids: &[u32]) -> Result<()> {
        let vocab = self.model.vocab() as u32;
        let cache = self.soft_token_cache.borrow();
        ids.iter()
            .filter_map(|id| id.checked_sub(vocab))
            .try_for_each(|number| cache.soft_token(number).map(|_| ()))
    }

    /// Prepares the sequence `ids` to run from `start` on: sets its RoPE positions, and splits it into
    /// chunks of at most `most` tokens.
    ///
    /// # Errors
    /// `UnsupportedOption` for an image that no chunk can hold; device errors.
    pub(in crate::exec) fn prepare_prompt(
        &mut self,
        ids: &[u32],
        start: usize,
        most: usize,
    ) -> Result<Vec<Range<usize>>> {
        self.update_mrope(ids)?;
        let chunks = self.prefill_chunks(&ids[start..], most)?;
        Ok(chunks
            .into_iter()
            .map(|chunk| start + chunk.start..start + chunk.end)
            .collect())
    }

    /// Writes the inputs of a chunk of the sequence `ids`: its ids, the embeddings of its soft tokens
    /// and the visible end of each row.
    ///
    /// # Errors
    /// `UnsupportedOption` for soft tokens that the model does not accept; device errors.
    pub(in crate::exec) fn stage_chunk(
        &self,
        ids: &[u32],
        chunk: Range<usize>,
    ) -> Result<StagedChunk> {
        self.write_visible_ends(ids, chunk.clone())?;
        let part = &ids[chunk];
        let soft = self.stage_soft_tokens(part)?;
        let staged = StagedChunk {
            has_soft_tokens: soft.is_some(),
            ids: soft.unwrap_or_else(|| part.to_vec()),
        };
        self.model.gpu.write(
            self.buffer(Slot::Ids)?,
            0,
            bytemuck::cast_slice(&staged.ids),
        );
        Ok(staged)
    }

    /// Updates the RoPE tables to the M-RoPE positions of a sequence with images, or back to those
    /// of plain text if the last sequence had images.
    pub(in crate::exec) fn update_mrope(&mut self, ids: &[u32]) -> Result<()> {
        let Some(sections) = self.model.mrope_sections.clone() else {
            return Ok(());
        };
        let mut found = self
            .soft_token_cache
            .borrow()
            .mrope_positions(ids, self.model.vocab() as u32)
            .unwrap_or_default();
        // Text after the last image has regular positions with an offset.
        while let Some(last) = found.tokens.len().checked_sub(1)
            && found.tokens[last] == [(last as i64 + found.offset) as u32; 3]
        {
            found.tokens.truncate(last);
        }
        if self.mrope == found && (found.tokens.is_empty() || self.model.reuses_prefix()) {
            return Ok(());
        }
        let end = found.tokens.len().min(self.model.capacity());
        let first = (0..end)
            .find(|i| found.tokens[*i] != [*i as u32; 3])
            .unwrap_or(end);
        let at = |token: usize, direction: usize| match found.tokens.get(token) {
            Some(place) => place[direction],
            None => (token as i64 + found.offset) as u32,
        };
        for (index, spec) in self.model.graph().ropes.iter().enumerate() {
            let slot = Slot::Rope(index);
            let Some(buffer) = self.own.get(&slot) else {
                continue;
            };
            let row = (spec.dim * 4) as u64;
            let plain = self.model.runner.shared.get(&slot);
            let rows = if plain.is_some() {
                first..end
            } else {
                0..self.model.capacity()
            };
            let table = spec.table_of(rows.clone(), |token, pair| at(token, sections.axis(pair)));
            self.model.gpu.write(
                buffer,
                rows.start as u64 * row,
                bytemuck::cast_slice(&table),
            );
            if let Some(plain) = plain {
                // An image spans at most as many positions as tokens, so later text has smaller
                // positions than indices.
                let moved = (end as i64 + found.offset) as u64;
                let rest = (self.model.capacity() - end) as u64;
                let copy = |from, to, rows| Command::Copy {
                    from: (plain, from * row),
                    to: (buffer, to * row),
                    size: rows * row,
                };
                let copies = [copy(0, 0, first as u64), copy(moved, end as u64, rest)];
                self.model.gpu.submit(&copies)?;
            }
        }
        self.mrope = found;
        Ok(())
    }

    /// Splits a prompt into chunks of at most `most` tokens without cutting a tile that has
    /// bidirectional attention.
    fn prefill_chunks(&self, ids: &[u32], most: usize) -> Result<Vec<Range<usize>>> {
        let vocab = self.model.vocab() as u32;
        let cache = self.soft_token_cache.borrow();

        let mut parts = Vec::new();
        let mut first = 0;
        while first < ids.len() {
            let mut end = (first + most).min(ids.len());
            if self.model.image_mask != ImageMask::Causal && end < ids.len() {
                match cache.tile_bounds(ids, vocab, end) {
                    Some((start, _)) if start > first => end = end.min(start),
                    Some((start, after)) if start < end => {
                        let option = format!("an image of {} tokens", after - start);
                        let hint =
                            format!("Use a smaller image: a prefill chunk has {most} tokens.");
                        return Err(Error::UnsupportedOption {
                            architecture: self.model.graph().name.clone(),
                            option,
                            hint,
                        });
                    }
                    _ => {}
                }
            }
            parts.push(first..end);
            first = end;
        }
        Ok(parts)
    }

    /// Writes the visible end of each row in a chunk of the sequence `ids`: image tokens see up to
    /// the end of their image.
    fn write_visible_ends(&self, ids: &[u32], part: Range<usize>) -> Result<()> {
        if self.model.image_mask == ImageMask::Causal {
            return Ok(());
        }
        let vocab = self.model.vocab() as u32;
        let cache = self.soft_token_cache.borrow();

        let ends: Vec<u32> = part
            .map(|at: usize| {
                cache
                    .tile_bounds(ids, vocab, at)
                    .map_or(at + 1, |(_, end)| end) as u32
            })
            .collect();
        self.model.gpu.write(
            self.buffer(Slot::VisibleEnds)?,
            0,
            bytemuck::cast_slice(&ends),
        );
        Ok(())
    }

    /// Returns the ids of a chunk as the step reads them, and copies the embeddings of its soft tokens
    /// to the step's input. `None` if the chunk has none.
    fn stage_soft_tokens(&self, part: &[u32]) -> Result<Option<Vec<u32>>> {
        let vocab = self.model.vocab() as u32;
        if part.iter().all(|id| *id < vocab) {
            return Ok(None);
        }

        let input = self
            .model
            .graph()
            .inputs
            .iter()
            .position(|i| i.name == IMAGE_EMBEDDINGS)
            .ok_or_else(|| Error::UnsupportedOption {
                architecture: self.model.graph().name.clone(),
                option: "image input".into(),
                hint: "Load a model with image input.".into(),
            })?;
        let target = self.buffer(Slot::Input(crate::ir::InputId(input)))?;
        // Steps index soft tokens from the end of the embedding table.
        let graph = self.model.graph();
        let tables = graph.nodes.iter().filter_map(|n| match n.op {
            Op::Embed(Embed {
                table,
                soft: Some(SoftTokens::Rows(_)),
                ..
            }) => Some(graph.weight(table).rows() as u32),
            _ => None,
        });
        let base = tables.min().unwrap_or(vocab);
        let cache = self.soft_token_cache.borrow();
        let mut words = Vec::with_capacity(part.len());
        let mut copies = Vec::<(Command<'_>, usize)>::new();

        let mut row = 0;
        for id in part {
            let Some(number) = id.checked_sub(vocab) else {
                words.push(*id);
                continue;
            };
            let place = cache.soft_token(number)?;
            let from = place.encoded.token_rows[place.token] as usize;
            let size = rows_bytes(1, place.encoded.cols);
            words.push(base + row as u32);
            // Merge consecutive rows into one copy.
            match copies.last_mut() {
                Some((
                    Command::Copy {
                        from: (buffer, at),
                        size: all,
                        ..
                    },
                    last,
                )) if *last == row
                    && std::ptr::eq(*buffer, &place.encoded.rows)
                    && *at + *all == from as u64 * size =>
                {
                    *all += size;
                    *last = row + 1;
                }
                _ => {
                    let from = (&place.encoded.rows, from as u64 * size);
                    copies.push((
                        Command::Copy {
                            from,
                            to: (target, row as u64 * size),
                            size,
                        },
                        row + 1,
                    ));
                }
            }
            row += 1;
        }
        self.model
            .gpu
            .submit(&copies.into_iter().map(|c| c.0).collect::<Vec<_>>())?;
        Ok(Some(words))
    }

    /// Replaces image placeholders in a prompt by soft tokens, in order. `images` holds the
    /// placeholder id and the first cached id of each image.
    ///
    /// # Errors
    /// `Request` when the number of placeholders differs from the number of image tokens.
    pub fn splice_soft_tokens(&self, ids: &[u32], images: &[(u32, u32)]) -> Result<Vec<u32>> {
        let vocab = self.model.vocab() as u32;
        let cache = self.soft_token_cache.borrow();

        let mut spliced = ids.to_vec();
        for (placeholder, _) in images {
            let of = images.iter().filter(|(mark, _)| mark == placeholder);
            let mut numbers = of.flat_map(|(_, first)| {
                (0..cache.tokens(*first) as u32).map(move |i| vocab + first + i)
            });
            let wanted = ids.iter().filter(|id| *id == placeholder).count();
            let found = numbers.clone().count();
            if wanted != found {
                let reason = format!(
                    "{wanted} image placeholders (id {placeholder}) but {found} image tokens. Use one placeholder per image token."
                );
                return Err(Error::Request {
                    parameter: "ids".into(),
                    reason,
                });
            }
            let places = spliced.iter_mut().filter(|id| *id == placeholder);
            places.for_each(|id| *id = numbers.next().unwrap_or(*id));
        }
        Ok(spliced)
    }
}
