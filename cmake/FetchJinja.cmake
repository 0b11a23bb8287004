# Fetches the npm packages of a lock file:
#   cmake -D SOURCE=<folder of package.json> -D FOLDER=<where to> -D FILE=<what must be there> -P ...
# npm checks the lock file's integrity hashes, and takes from its own cache what it has.
find_program(npm npm)
if(NOT npm)
  message(FATAL_ERROR "npm is missing: scripts/setup installs it. It fetches the Jinja implementation "
                      "that chat templates need, and the client that the server is tested with.")
endif()
file(COPY "${SOURCE}/package.json" "${SOURCE}/package-lock.json" DESTINATION "${FOLDER}")
execute_process(
  COMMAND "${npm}" ci --ignore-scripts --legacy-peer-deps --no-audit --no-fund --prefer-offline
  WORKING_DIRECTORY "${FOLDER}" RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "npm could not fetch the packages of ${SOURCE}/package-lock.json. The first build "
                      "needs a network with an npm registry; later ones do not. npm said:\n${output}")
endif()
if(NOT EXISTS "${FOLDER}/${FILE}")
  message(FATAL_ERROR "${FOLDER}/${FILE}: npm has fetched the package, but this file is not in it")
endif()
file(TOUCH "${FOLDER}/${FILE}")  # newer than the lock file, so that it is not fetched again
