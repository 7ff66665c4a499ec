# Makes page_assets.cc of the files of the page: cmake -DFOLDER=.. -DFILES=a;b -DOUTPUT=.. -P embed.cmake
set(text "#include \"tools/pictures/page.h\"\n\nnamespace contraflow {\nnamespace {\nconstexpr PageAsset kAssets[] = {\n")
foreach(file IN LISTS FILES)
  file(READ ${FOLDER}/${file} content)
  string(APPEND text "{\"${file}\", R\"=====(${content})=====\"},\n")
endforeach()
string(APPEND text "};\n}  // namespace\nconst std::span<const PageAsset> kPageAssets(kAssets);\n}  // namespace contraflow\n")
file(WRITE ${OUTPUT} "${text}")
