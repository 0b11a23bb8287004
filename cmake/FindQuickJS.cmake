# Debian's libquickjs: a static library below the library folder. Defines QuickJS::QuickJS.
find_path(QuickJS_INCLUDE_DIR quickjs/quickjs.h)
find_library(QuickJS_LIBRARY quickjs PATH_SUFFIXES quickjs)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(QuickJS REQUIRED_VARS QuickJS_LIBRARY QuickJS_INCLUDE_DIR
                                  REASON_FAILURE_MESSAGE "scripts/setup installs libquickjs")
if(QuickJS_FOUND AND NOT TARGET QuickJS::QuickJS)
  add_library(QuickJS::QuickJS UNKNOWN IMPORTED)
  set_target_properties(QuickJS::QuickJS PROPERTIES IMPORTED_LOCATION "${QuickJS_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${QuickJS_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES "m;Threads::Threads;${CMAKE_DL_LIBS}")
endif()
