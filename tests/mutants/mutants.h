/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes that are known to be made, and for each the case that has to notice it: the class, the name in the code
 * (CKV_MUTANT, lib/support/mutant.h), what it does, the program and the case. One more is one row here and one line in
 * the code; a program not named before goes into CMakeLists.txt. */
#ifndef CKV_TESTS_MUTANTS_MUTANTS_H
#define CKV_TESTS_MUTANTS_MUTANTS_H

/* clang-format off */
#define MUTANTS(M) \
    M(seq_len, seq_len_of_the_shard, "the rows of this rank are taken for the real tokens", "host/test_ulysses_threads", "ranks_equal_one_rank") \
    M(seq_len, seq_len_with_padding, "the padded rows of all ranks are taken for the real tokens", "host/test_ulysses_threads", "padded_first_chunk_then_sliding_window") \
    M(seq_len, seq_len_of_the_shard_times_ranks, "the rows of this rank, times the ranks, are taken for the real tokens", "host/test_ulysses_threads", "unpadded_shards_of_any_length") \
    M(seq_len, seq_len_of_the_local_mask, "the real tokens on this rank are taken for all", "host/test_ulysses_threads", "ranks_equal_one_rank") \
    M(seq_len, seq_len_rounded_down, "tokens that do not fill a row of every rank are dropped", "host/test_ulysses_threads", "every_chunk_padded") \
    M(seq_len, seq_len_unbounded, "a count of one rank's tokens is accepted", "host/test_ulysses_threads", "per_rank_seq_len_is_refused") \
    M(padding, padding_as_remainder, "len % ranks rows are added, not -len % ranks", "host/test_plan", "padding_completes_every_length") \
    M(padding, padding_attended, "keys past the real tokens count", "host/test_ulysses_threads", "every_chunk_padded") \
    M(padding, padding_left_in_out, "padding rows of out are not zeroed", "host/test_ulysses_threads", "attention_with_44_then_11_tokens") \
    M(padding, padding_left_in_lse, "padding rows of lse keep what was there", "host/test_ulysses_threads", "attention_with_44_then_11_tokens") \
    M(padding, unpadded_rest_dropped, "without padding, tokens past the last full row are lost", "host/test_ulysses_threads", "unpadded_shards_of_any_length") \
    M(commit, commit_with_padding, "an odd count is committed as the even one above it", "host/test_ulysses_threads", "every_chunk_padded") \
    M(layout, head_major_there, "shards are packed head by head", "host/test_ulysses_threads", "stamps_come_back_to_their_place") \
    M(layout, head_major_back, "the way back is unpacked head by head", "host/test_ulysses_threads", "stamps_come_back_to_their_place") \
    M(layout, fused_head_major_back, "the fused way back reads head by head", "host/test_ulysses_threads", "stamps_come_back_to_their_place") \
    M(layout, shards_reversed, "shards are put together from the last rank to the first", "host/test_ulysses_threads", "stamps_come_back_to_their_place") \
    M(layout, fused_shards_reversed, "the same in the fused exchange", "host/test_ulysses_threads", "stamps_come_back_to_their_place") \
    M(layout, slice_of_a_neighbour, "a rank gets the heads of the next one", "host/test_ulysses_threads", "stamps_come_back_to_their_place") \
    M(layout, fused_slice_of_a_neighbour, "the same in the fused exchange", "host/test_ulysses_threads", "stamps_come_back_to_their_place") \
    M(layout, fused_own_slots_unfilled, "the fused exchange leaves the slots of the own block empty", "host/test_ulysses_threads", "rollout_through_rotations") \
    M(layout, lse_left_behind, "lse does not travel back", "host/test_ulysses_threads", "rollout_through_rotations") \
    M(layout, memory_never_grows, "a larger forward uses the memory of a smaller one", "host/test_ulysses_threads", "exchange_memory_grows") \
    M(heads, evenness_of_local_heads, "a rank's heads have to divide by the ranks once more", "host/test_ulysses_threads", "ranks_equal_one_rank") \
    M(heads, heads_of_the_process, "the head counts of the context made last are everybody's", "host/test_ulysses_threads", "two_contexts_live_side_by_side") \
    M(heads, kv_head_of_another_group, "fewer K/V heads than ranks are dealt out in turn", "host/test_ulysses_threads", "kv_heads_fewer_than_ranks") \
    M(heads, fused_kv_head_of_another_group, "the same in the fused exchange", "host/test_ulysses_threads", "kv_heads_fewer_than_ranks") \
    M(heads, cache_heads_unchecked, "a cache with other heads is not noticed", "host/test_ulysses_threads", "head_count_guard") \
    M(heads, parts_share_a_head, "every part of the heads is staged as the first", "host/test_ulysses_threads", "overlap_parts_change_nothing") \
    M(positions, positions_restart, "rotary positions start again halfway", "single_gpu/test_qk_norm_rope", "matches_the_definition") \
    M(positions, positions_of_valid_tokens, "rotary positions count tokens that are taken for valid", "single_gpu/test_qk_norm_rope", "matches_the_definition") \
    M(agreement, refusal_without_agreement, "a rank refuses and the others go on", "host/test_ulysses_threads", "refusal_of_one_rank_is_everybodys") \
    M(agreement, failure_without_agreement, "a rank's attention fails and the others wait for its results", "host/test_ulysses_threads", "failure_after_the_exchange_is_agreed") \
    M(agreement, differences_unnoticed, "ranks attend different forwards", "host/test_ulysses_threads", "ranks_that_differ_are_refused") \
    M(agreement, wishes_unread, "any name of an exchange will do", "host/test_ulysses_threads", "wrong_wishes_are_refused") \
    M(agreement, meeting_without_deadline, "the fused exchange waits for ever", "host/test_ulysses_faults_threads", "exchange_whose_peer_comes_too_late") \
    M(agreement, giving_up_in_silence, "a rank that gave up in the fused exchange does not tell the others", "host/test_ulysses_faults_threads", "exchange_whose_peer_comes_too_late") \
    M(context, context_counted_twice, "a token of replicated context enters twice", "host/test_ulysses_threads", "replicated_context_enters_once") \
    M(context, context_of_the_first_rank, "every rank writes the first rank's heads of replicated context", "host/test_ulysses_threads", "replicated_context_enters_once") \
    M(window, window_shifted_by_padding, "padding of the first chunk shifts every later window", "host/test_ulysses_threads", "padded_first_chunk_then_sliding_window") \
    M(window, window_starts_on_a_page, "windows start where a page does", "host/test_ulysses_threads", "clean_pass_in_four_unaligned_blocks")
/* clang-format on */

#endif
