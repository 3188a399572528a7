/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes that are known to be made, and for each the case that has to notice it: the class, the name in the code
 * (CKV_MUTANT, lib/support/mutant.h), what it does, the program and the case; then the trace (traces.h) and the options
 * with which `ckv repro shrink` has to find and shrink it, or "-" and why no trace shows it. One more is one row here
 * and one line in the code; a program not named before goes into CMakeLists.txt. */
#ifndef CKV_TESTS_MUTANTS_MUTANTS_H
#define CKV_TESTS_MUTANTS_MUTANTS_H

/* clang-format off */
#define MUTANTS(M) \
    M(seq_len, seq_len_of_the_shard, "the rows of this rank are taken for the real tokens", "host/test_ulysses_threads", "ranks_equal_one_rank", "small_pages --ranks 2") \
    M(seq_len, seq_len_with_padding, "the padded rows of all ranks are taken for the real tokens", "host/test_ulysses_threads", "padded_first_chunk_then_sliding_window", "small_pages --ranks 2") \
    M(seq_len, seq_len_of_the_shard_times_ranks, "the rows of this rank, times the ranks, are taken for the real tokens", "host/test_ulysses_threads", "unpadded_shards_of_any_length", "small_pages --ranks 2") \
    M(seq_len, seq_len_of_the_local_mask, "the real tokens on this rank are taken for all", "host/test_ulysses_threads", "ranks_equal_one_rank", "small_pages --ranks 2") \
    M(seq_len, seq_len_rounded_down, "tokens that do not fill a row of every rank are dropped", "host/test_ulysses_threads", "every_chunk_padded", "small_pages --ranks 2") \
    M(seq_len, seq_len_unbounded, "a count of one rank's tokens is accepted", "host/test_ulysses_threads", "per_rank_seq_len_is_refused", "-calls it lets through are refused otherwise") \
    M(padding, padding_as_remainder, "len % ranks rows are added, not -len % ranks", "host/test_plan", "padding_completes_every_length", "-the forward is refused") \
    M(padding, padding_attended, "keys past the real tokens count", "host/test_ulysses_threads", "every_chunk_padded", "small_pages") \
    M(padding, padding_left_in_out, "padding rows of out are not zeroed", "host/test_ulysses_threads", "attention_with_44_then_11_tokens", "small_pages") \
    M(padding, padding_left_in_lse, "padding rows of lse keep what was there", "host/test_ulysses_threads", "attention_with_44_then_11_tokens", "-lse is not in a trace") \
    M(padding, unpadded_rest_dropped, "without padding, tokens past the last full row are lost", "host/test_ulysses_threads", "unpadded_shards_of_any_length", "-the forward is refused") \
    M(commit, commit_with_padding, "an odd count is committed as the even one above it", "host/test_ulysses_threads", "every_chunk_padded", "small_pages") \
    M(layout, head_major_there, "shards are packed head by head", "host/test_ulysses_threads", "stamps_come_back_to_their_place", "small_pages --ranks 2 --exchange sendrecv") \
    M(layout, head_major_back, "the way back is unpacked head by head", "host/test_ulysses_threads", "stamps_come_back_to_their_place", "small_pages --ranks 2 --exchange sendrecv") \
    M(layout, fused_head_major_back, "the fused way back reads head by head", "host/test_ulysses_threads", "stamps_come_back_to_their_place", "small_pages --ranks 2") \
    M(layout, shards_reversed, "shards are put together from the last rank to the first", "host/test_ulysses_threads", "stamps_come_back_to_their_place", "small_pages --ranks 2 --exchange sendrecv") \
    M(layout, fused_shards_reversed, "the same in the fused exchange", "host/test_ulysses_threads", "stamps_come_back_to_their_place", "small_pages --ranks 2") \
    M(layout, slice_of_a_neighbour, "a rank gets the heads of the next one", "host/test_ulysses_threads", "stamps_come_back_to_their_place", "small_pages --ranks 2 --exchange sendrecv") \
    M(layout, fused_slice_of_a_neighbour, "the same in the fused exchange", "host/test_ulysses_threads", "stamps_come_back_to_their_place", "small_pages --ranks 2") \
    M(layout, fused_own_slots_unfilled, "the fused exchange leaves the slots of the own block empty", "host/test_ulysses_threads", "rollout_through_rotations", "small_pages --ranks 2") \
    M(layout, lse_left_behind, "lse does not travel back", "host/test_ulysses_threads", "rollout_through_rotations", "-lse is not in a trace") \
    M(layout, memory_never_grows, "a larger forward uses the memory of a smaller one", "host/test_ulysses_threads", "exchange_memory_grows", "small_pages --ranks 2") \
    M(heads, evenness_of_local_heads, "a rank's heads have to divide by the ranks once more", "host/test_ulysses_threads", "ranks_equal_one_rank", "-the heads are refused") \
    M(heads, heads_of_the_process, "the head counts of the context made last are everybody's", "host/test_ulysses_threads", "two_contexts_live_side_by_side", "-a second model is not in a trace") \
    M(heads, kv_head_of_another_group, "fewer K/V heads than ranks are dealt out in turn", "host/test_ulysses_threads", "kv_heads_fewer_than_ranks", "small_pages --ranks 4 --exchange sendrecv") \
    M(heads, fused_kv_head_of_another_group, "the same in the fused exchange", "host/test_ulysses_threads", "kv_heads_fewer_than_ranks", "small_pages --ranks 4") \
    M(heads, cache_heads_unchecked, "a cache with other heads is not noticed", "host/test_ulysses_threads", "head_count_guard", "-replay makes no such cache") \
    M(heads, parts_share_a_head, "every part of the heads is staged as the first", "host/test_ulysses_threads", "overlap_parts_change_nothing", "-replay exchanges in one part") \
    M(positions, positions_restart, "rotary positions start again halfway", "single_gpu/test_qk_norm_rope", "matches_the_definition", "-a trace has its positions applied") \
    M(positions, positions_of_valid_tokens, "rotary positions count tokens that are taken for valid", "single_gpu/test_qk_norm_rope", "matches_the_definition", "-a trace has its positions applied") \
    M(agreement, refusal_without_agreement, "a rank refuses and the others go on", "host/test_ulysses_threads", "refusal_of_one_rank_is_everybodys", "-ranks of replay refuse alike") \
    M(agreement, failure_without_agreement, "a rank's attention fails and the others wait for its results", "host/test_ulysses_threads", "failure_after_the_exchange_is_agreed", "-no rank of replay fails alone") \
    M(agreement, differences_unnoticed, "ranks attend different forwards", "host/test_ulysses_threads", "ranks_that_differ_are_refused", "-ranks of replay do not differ") \
    M(agreement, wishes_unread, "any name of an exchange will do", "host/test_ulysses_threads", "wrong_wishes_are_refused", "-replay has no wrong wish") \
    M(agreement, meeting_without_deadline, "the fused exchange waits for ever", "host/test_ulysses_faults_threads", "exchange_whose_peer_comes_too_late", "-no rank of replay comes too late") \
    M(agreement, giving_up_in_silence, "a rank that gave up in the fused exchange does not tell the others", "host/test_ulysses_faults_threads", "exchange_whose_peer_comes_too_late", "-no rank of replay comes too late") \
    M(context, context_counted_twice, "a token of replicated context enters twice", "host/test_ulysses_threads", "replicated_context_enters_once", "small_pages") \
    M(context, context_of_the_first_rank, "every rank writes the first rank's heads of replicated context", "host/test_ulysses_threads", "replicated_context_enters_once", "small_pages --ranks 2") \
    M(window, window_shifted_by_padding, "padding of the first chunk shifts every later window", "host/test_ulysses_threads", "padded_first_chunk_then_sliding_window", "small_pages") \
    M(window, window_starts_on_a_page, "windows start where a page does", "host/test_ulysses_threads", "clean_pass_in_four_unaligned_blocks", "small_pages") \
    M(window, window_one_token_long, "windows see one token more", "single_gpu/test_cache", "worked_example", "small_pages") \
    M(window, window_one_token_short, "windows see one token less", "single_gpu/test_cache", "worked_example", "small_pages") \
    M(eviction, evicted_one_token_early, "a page leaves while the window still has its last token", "single_gpu/test_cache", "odd_geometries", "small_pages") \
    M(eviction, pinned_tokens_evicted, "the oldest pages leave, pinned ones too", "single_gpu/test_cache", "pin_inside_a_chunk", "small_pages") \
    M(eviction, pinned_tail_left_behind, "pinned tokens do not move out of a page that leaves", "single_gpu/test_cache", "pin_inside_a_chunk", "large_pages") \
    M(pages, rotation_by_one_page, "however many pages leave, the table rotates by one", "single_gpu/test_cache", "window_slides_over_pages", "small_pages") \
    M(pages, unused_entries_name_page_0, "table entries past a row name a page that others use", "single_gpu/test_cache_rows", "rows_end_in_the_guard_page", "-nobody reads past a row") \
    M(pages, pages_of_eight_at_most, "slot 8 of a page is taken for slot 0", "single_gpu/test_attention_keys", "visible_keys_are_exactly_the_window", "large_pages") \
    M(blocks, last_own_token_unseen, "a causal block does not see its last token", "single_gpu/test_cache", "worked_example", "small_pages") \
    M(blocks, earlier_blocks_not_copied, "later blocks read what a forward before left of earlier ones", "single_gpu/test_cache", "worked_example", "small_pages") \
    M(edits, edits_reach_no_copy, "an edit changes the home slot and no private copy", "single_gpu/test_cache", "edits_take_effect_at_the_next_forward", "small_pages") \
    M(edits, edits_where_a_page_was, "a position is taken for its slot, as if no page had left", "single_gpu/test_cache", "edits_take_effect_at_the_next_forward", "small_pages") \
    M(state, history_outlives_the_rollout, "a cache that is opened again goes on where it was", "single_gpu/test_cache", "reopen_keeps_addresses", "small_pages") \
    M(state, refused_commit_leaves_traces, "a commit changes the cache before it is refused", "single_gpu/test_cache", "refused_operations_change_nothing", "-the trace ends at the refused call") \
    M(strides, strides_of_k_for_v, "V is read with the strides of K", "single_gpu/test_attention", "layouts_of_the_input_do_not_matter", "-tensors of a trace are dense") \
    M(graph_key, graph_key_without_strides, "graphs of other strides have the same key", "host/test_graph_key", "key_follows_what_is_captured", "-replay captures no graph") \
    M(manager, salt_unread, "prompts of different salts share blocks", "host/test_blocks_api", "hashes_depend_on_keys_alone", "-the block manager is not in a trace") \
    M(manager, unwritten_token_stored, "a block becomes reusable before its last token is written", "host/test_blocks", "rewound_tails_are_owned", "-the block manager is not in a trace") \
    M(manager, slid_one_block_early, "a sliding window drops a block that it still sees", "host/test_blocks", "sinks_stay", "-the block manager is not in a trace")
/* clang-format on */

#endif
