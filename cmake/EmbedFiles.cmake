# Writes a source file that holds the text of other files:
#   cmake -D OUT=<x.cc> -D HEADER=<included> -D NAMESPACE=<namespace> -D TABLES=<table,file,...|table,file,...> -P ...
# For each table a function `std::span<const EmbeddedFile> <table>()` with the files in order, named
# without folder and extension. The header declares them.
set(text "// Generated from other files by cmake/EmbedFiles.cmake.\n#include \"${HEADER}\"\n\nnamespace ${NAMESPACE} {\n")
string(REPLACE "|" ";" tables "${TABLES}")
foreach(table IN LISTS tables)
  string(REPLACE "," ";" entries "${table}")
  list(POP_FRONT entries name)
  string(APPEND text "\nstd::span<const EmbeddedFile> ${name}() {\n  static constexpr EmbeddedFile kFiles[] = {\n")
  foreach(file IN LISTS entries)
    file(READ "${file}" content)
    get_filename_component(stem "${file}" NAME_WE)
    string(FIND "${content}" ")hotset_embed\"" clash)
    if(NOT clash EQUAL -1)
      message(FATAL_ERROR "${file}: found the end of a raw string in it")
    endif()
    string(APPEND text "      {\"${stem}\", R\"hotset_embed(${content})hotset_embed\"},\n")
  endforeach()
  string(APPEND text "  };\n  return kFiles;\n}\n")
endforeach()
string(APPEND text "\n}  // namespace ${NAMESPACE}\n")
file(WRITE "${OUT}" "${text}")
