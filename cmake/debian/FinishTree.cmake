# What Debian wants otherwise than `cmake --install` leaves it. CPack includes this before it makes
# the package of the folder CPACK_TEMPORARY_DIRECTORY.
set(root "${CPACK_TEMPORARY_DIRECTORY}")
set(share "${root}/usr/share")

# zsh looks for what packages bring elsewhere than upstream does.
file(MAKE_DIRECTORY "${share}/zsh/vendor-completions")
file(RENAME "${share}/zsh/site-functions/_hotset" "${share}/zsh/vendor-completions/_hotset")
file(REMOVE_RECURSE "${share}/zsh/site-functions")

# The service's settings, for root alone: keys may be among them.
file(COPY "${CPACK_HOTSET_ENVIRONMENT}" DESTINATION "${root}/etc/hotset"
     FILE_PERMISSIONS OWNER_READ OWNER_WRITE)
file(REMOVE "${share}/doc/hotset/environment")

file(READ "${share}/doc/hotset/LICENSE" text)
foreach(notice IN LISTS CPACK_HOTSET_NOTICES)
  string(FIND "${notice}" "=" at)
  string(SUBSTRING "${notice}" 0 ${at} name)
  math(EXPR at "${at} + 1")
  string(SUBSTRING "${notice}" ${at} -1 file)
  if(NOT EXISTS "${file}")
    message(FATAL_ERROR "${file} is missing: the license of ${name}, a part of the program")
  endif()
  file(READ "${file}" license)
  string(APPEND text "\n\nThe program contains ${name}:\n\n${license}")
endforeach()
file(WRITE "${share}/doc/hotset/copyright" "${text}")
file(REMOVE "${share}/doc/hotset/LICENSE")
file(CREATE_LINK copyright "${share}/doc/hotset/LICENSE" SYMBOLIC)  # the README has a link to it

string(TIMESTAMP now "%a, %d %b %Y %H:%M:%S +0000" UTC)
set(version "${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}")
file(WRITE "${share}/doc/hotset/changelog.Debian"
     "hotset (${version}) unstable; urgency=medium\n\n  * What has changed is in CHANGELOG.md.\n\n"
     " -- ${CPACK_PACKAGE_CONTACT}  ${now}\n")

find_program(gzip gzip REQUIRED)
execute_process(COMMAND "${gzip}" -9n "${share}/man/man1/hotset.1"
                "${share}/doc/hotset/changelog.Debian" COMMAND_ERROR_IS_FATAL ANY)
