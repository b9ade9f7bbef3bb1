# The real-text pipeline.
target_sources(dsalt_verification PRIVATE src/text_lookahead.cpp src/text_model.cpp src/text_pipeline.cpp src/text_suite.cpp)
