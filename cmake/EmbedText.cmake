# SPDX-License-Identifier: Apache-2.0
# cmake -DOUTPUT=FILE.c -DTEXTS=NAME;... -DNAME=FILE;... -P EmbedText.cmake: for each name its files, one behind the other,
# as `const char NAME[]`. ASCII only.
set(source "")
foreach(name IN LISTS TEXTS)
  set(bytes "")
  foreach(input IN LISTS ${name})
    file(READ ${input} text HEX)
    string(APPEND bytes ${text})
  endforeach()
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  if(bytes MATCHES "0x[89a-f]")
    message(FATAL_ERROR "${name} holds a byte that is not ASCII")
  endif()
  string(APPEND source "extern const char ${name}[];\nconst char ${name}[] = {${bytes}0};\n")
endforeach()
file(WRITE ${OUTPUT} "${source}")
