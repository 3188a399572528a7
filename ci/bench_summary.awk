# SPDX-License-Identifier: Apache-2.0
# What the tables of docs/benchmarks_MACHINE.md come to: awk -v machine=gpu|host -f ci/bench_summary.awk TABLES
# A line that nothing was measured for is left out.

BEGIN { FS = " *[|] *" }

/^### / { section = substr($0, 5) }
/^device: / {
  if (match($0, /ranks: [0-9]+/)) ranks = substr($0, RSTART + 7, RLENGTH - 7)
  if (caption == "" && match($0, /^.*pages of [0-9]+/)) caption = substr($0, 9, RLENGTH - 8)
}
/^[|] what / {
  split("", column)
  for (i = 2; i < NF; i++) column[$i] = i
}
/^[|] / && !/^[|] (what|---) / {
  rows++
  what[rows] = cell("what"); variant[rows] = cell("variant"); at[rows] = cell("at"); median[rows] = cell("median us")
  rate[rows] = cell("rate"); against[rows] = cell("against"); error[rows] = cell("error"); note[rows] = cell("note")
  place[rows] = section
}
function cell(title) { return title in column ? $column[title] : "" }

# The first row of that description; one of a captured graph before an eager one, as rollouts run. No the_place: anywhere.
function find(the_what, the_variant, the_at, the_place,    row, with_eager) {
  for (with_eager = 0; with_eager < 2; with_eager++)
    for (row = 1; row <= rows; row++)
      if (what[row] ~ the_what && variant[row] ~ the_variant && at[row] ~ the_at && place[row] ~ the_place && (with_eager || what[row] !~ /, eager$/))
        return row
  return 0
}

function milliseconds(us) {
  if (us ~ /^[^0-9]/) return us # failed, and why
  return sprintf(us >= 1e5 ? "%.1f" : us >= 1e3 ? "%.2f" : "%.3f", us / 1000)
}

function forward_line(label, the_what, the_at,    i, row, line, worst) {
  for (i = 1; i <= columns; i++) {
    row = find(the_what, "^" variants[i] "$", the_at)
    line = line (row && median[row] != "" ? " " milliseconds(median[row]) " |" : " |")
    if (row && error[row] + 0 > worst + 0) worst = error[row]
  }
  if (line ~ /[0-9a-z]/) forwards = forwards "| " label " |" line (worst == "" ? " |" : " " worst " |") "\n"
}

function print_forwards(    i) {
  printf "\n| attention and commit, ms |"
  for (i = 1; i <= columns; i++) printf " `%s` |", variants[i]
  printf " error |\n| --- |"
  for (i = 0; i <= columns; i++) printf " ---: |"
  printf "\n%s", forwards
  print "\n" caption ". Medians; a commit from its first to its last kernel, or by the host's clock" \
    (machine == "host" ? "." : "; `cudnn contiguous` is cuDNN over one buffer, and writes no K and V.")
}

function anchor(title) {
  title = tolower(title)
  gsub(/[^a-z0-9 -]/, "", title)
  gsub(/ /, "-", title)
  return title
}

function other_line(label, the_what, the_variant, the_at, the_place,    row) {
  row = find(the_what, the_variant, the_at, the_place)
  if (row) print_other(label, row)
}
function print_other(label, row) {
  print "| " label " |" filled(median[row] == "" ? "" : median[row] " us") filled(rate[row]) filled(against[row]) \
    filled((median[row] == "" && error[row] != "" ? "error " error[row] ": " : "") note[row]) " [" place[row] "](benchmarks_" machine ".md#" anchor(place[row]) ") |"
}
function filled(text) { return text == "" ? " |" : " " text " |" }

END {
  columns = split(machine == "host" ? "host" : "hopper;cudnn;cudnn contiguous", variants, ";")
  forward_line("one layer: denoising forward, 1 block", "^attention, 1 block of [0-9]+, [a-z]+$", "")
  forward_line("one layer: clean forward, 4 blocks", "^attention, 4 blocks of [0-9]+, [a-z]+$", "")
  alone = "(graph a forward|eager)$" # no exchange behind it
  chunk = "^chunk cycle, [0-9]+ layers: "
  layers = find(chunk, "", "") ? what[find(chunk, "", "")] : ""
  gsub(/^chunk cycle, |: .*/, "", layers)
  forward_line("chunk of " layers ": 4 denoising forwards", chunk "4 denoising forwards$", alone)
  forward_line("chunk of " layers ": clean forward, 4 blocks", chunk "clean forward", alone)
  forward_line("chunk of " layers ": commit", chunk "commit$", alone)
  forward_line("chunk of " layers ": commit, host wall", chunk "commit, host wall$", alone)
  forward_line("**whole chunk**", chunk "whole chunk$", alone)
  forward_line("**whole chunk, " ranks " GPUs**", chunk "whole chunk$", "exchange")

  if (forwards != "") print_forwards()

  print "\n| besides | median | rate | against | | all of it |\n| --- | ---: | ---: | --- | --- | --- |"
  for (row = 1; row <= rows; row++)
    if (what[row] ~ /^attention, 1 block of/ && variant[row] ~ /^(hopper|host)$/ && against[row] ~ / of bound$/) {
      print_other("attention, as part of what this machine allows", row)
      break
    }
  other_line("attention over a buffer concatenated first", "^attention, 1 block", "^concatenate", "")
  other_line("attention over pages of fp8 (e4m3)", "^attention, 1 block", "^hopper$", "", "fp8")
  other_line("a window rounded down to a page", "^attention, 1 block", "^a window rounded", "")
  other_line("K/V write, one layer", "^K/V write", "^home and own slots$", "")
  other_line("commit, most that is copied", "^commit", "^(replayed|eager)$", "124 slots")
  usual = "^tokens 1576,"
  other_line("exchange of q, k, v of 1,576 tokens: one kernel", "^exchange, there$", "^fused$", usual)
  other_line("the same: messages", "^exchange, there$", "^sendrecv$", usual)
  other_line("the same: torch", "^exchange, there$", "^torch", usual)
  other_line("exchange of their output: one kernel", "^exchange, back$", "^fused$", usual)
  other_line("the same: torch", "^exchange, back$", "^torch", usual)
  other_line("a block allocated and released", "^block manager$", "^a block allocated and released", "")
  other_line("prefix of 100,000 tokens found among 1,000,000 blocks", "^block manager, prefix", "^among 1000000 cached blocks$", " 100000 ")
  other_line("memory of a cached block", "^block manager$", "^memory$", "1000000")
}
