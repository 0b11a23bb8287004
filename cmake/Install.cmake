# What `cmake --install` puts where, and the Debian package that `cpack` makes of it. Nothing that is
# installed needs this source tree; the demo model, ten times the rest, is not among it.
if(HOTSET_FUZZ OR HOTSET_SANITIZE)
  return()  # for tests only
endif()
include(GNUInstallDirs)

install(TARGETS hotset RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(FILES README.md CHANGELOG.md CONTRIBUTING.md LICENSE assets/environment
        DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(DIRECTORY docs DESTINATION "${CMAKE_INSTALL_DOCDIR}")
# Where systemd looks below /usr and /usr/local, whatever the folder of libraries is.
install(FILES assets/hotset.service DESTINATION lib/systemd/system)

# Made by the program itself, so they are as it is.
if(CMAKE_CROSSCOMPILING)
  message(STATUS "Neither man page nor completions: the program that prints them does not run here")
else()
  set(made "${PROJECT_BINARY_DIR}/share")
  file(MAKE_DIRECTORY "${made}")
  add_custom_command(
    OUTPUT "${made}/hotset.1" "${made}/hotset" "${made}/_hotset" "${made}/hotset.fish"
    COMMAND hotset reference man > "${made}/hotset.1"
    COMMAND hotset completion bash > "${made}/hotset"
    COMMAND hotset completion zsh > "${made}/_hotset"
    COMMAND hotset completion fish > "${made}/hotset.fish"
    DEPENDS hotset VERBATIM)
  add_custom_target(hotset_share ALL DEPENDS "${made}/hotset.1")
  install(FILES "${made}/hotset.1" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1")
  install(FILES "${made}/hotset" DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions")
  install(FILES "${made}/_hotset" DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/site-functions")
  install(FILES "${made}/hotset.fish" DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d")
endif()

set(HOTSET_PACKAGE_CONTACT "The hotset authors <maintainers@hotset.invalid>" CACHE STRING
    "Who a package names as its maintainer")
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME hotset)
set(CPACK_PACKAGE_CONTACT "${HOTSET_PACKAGE_CONTACT}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "runtime for Mixture-of-Experts models larger than the GPU")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
"hotset runs Mixture-of-Experts language models from GGUF files: from the
command line, or behind OpenAI's API as a service. The experts stay in host
memory, a device-side cache keeps the hot ones, and each miss takes the
cheapest lane that the machine has at that moment: uploaded, or computed by
the CPU. Models are not part of the package.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
# What the program is linked to, as the libraries' own packages say. Then what it loads: ggml's
# CPU backends are in libggml0 itself, from the version on that scripts/setup asks for. GPUs come
# with the backend's package, and without one the CPU computes.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libggml0 (>= 0.27)")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "libggml0-backend-vulkan (>= 0.27)")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
    "${PROJECT_SOURCE_DIR}/cmake/debian/conffiles;${PROJECT_SOURCE_DIR}/cmake/debian/postinst;${PROJECT_SOURCE_DIR}/cmake/debian/prerm;${PROJECT_SOURCE_DIR}/cmake/debian/postrm")
set(CPACK_PRE_BUILD_SCRIPTS "${PROJECT_SOURCE_DIR}/cmake/debian/FinishTree.cmake")
set(CPACK_HOTSET_ENVIRONMENT "${PROJECT_SOURCE_DIR}/assets/environment")
# Licenses of what is inside the program: linked statically, headers, and the Jinja implementation.
set(CPACK_HOTSET_NOTICES
    "QuickJS=/usr/share/doc/libquickjs/copyright"
    "nlohmann-json=/usr/share/doc/nlohmann-json3-dev/copyright"
    "CLI11=/usr/share/doc/libcli11-dev/copyright"
    "@huggingface/jinja=${PROJECT_BINARY_DIR}/npm/node_modules/@huggingface/jinja/LICENSE")
include(CPack)
