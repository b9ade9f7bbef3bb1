# The real-text pipeline.
dsalt_test(verification_text SOURCES text_suite_test.cpp LIBRARIES dsalt::verification)
